"""Choice of the recorded replies that are taught and measured.

The best of n (rejection sampling, e.g. section 2.2 of arXiv 2308.01825): episodes that reach a
score stay, of every problem the best, and of these the replies that did their own job.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowzoo.baselines.settings.sft import SftConfig, Taught
from flowzoo.baselines.sft.sources import ScriptedPlay, Transcript, is_scripted, read_source
from flowzoo.envs import Call, Problem, Workflow
from flowzoo.errors import UsageError
from flowzoo.seeding import key_digest, key_int

TRAINABLE = ("train", "pretrain")
"""Splits whose problems may be trained on."""


@dataclass(slots=True)
class SftCounts:
    """Number of transcripts and replies that are used and left out, by reason."""

    episodes: int = 0
    used: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    replies: int = 0
    """Replies of the kept episodes."""
    replies_left_out: Counter[str] = field(default_factory=Counter)
    trained: int = 0
    held_out: int = 0
    """Replies of the held-out loss."""
    compared: int = 0
    """Taught replies whose sampled numbers of tokens are known."""
    as_sampled: int = 0
    """Number of them that have these numbers as they are taught."""

    def plain(self) -> dict[str, Any]:
        """Plain values for a summary."""
        names = {"used": "kept"}  # the key in summary.json
        values = {names.get(name, name): getattr(self, name) for name in self.__slots__}
        return values | {
            "left_out": dict(self.left_out),
            "replies_left_out": dict(self.replies_left_out),
        }


def read_transcripts(
    config: SftConfig, workflow: Workflow, problems: Sequence[Problem], counts: SftCounts
) -> tuple[list[Transcript], list[Transcript]]:
    """Read the transcripts to train on, which are added to `counts`, and the ones to measure.

    Nothing is trained on `problems`, which are held out.
    """
    scripted = ScriptedPlay("train", config.n, config.samples, config.seed)
    transcripts = [row for word in config.source for row in read_source(word, workflow, scripted)]
    check_problems(transcripts, TRAINABLE, problems)
    taught = choose(transcripts, config, problems, counts)
    sources, held_back = config.validation, list[Transcript]()
    if sources and not problems and any(map(is_scripted, sources)):
        raise UsageError(
            "`validation` scripted plays `eval_problems` problems, and these are 0: give some"
        )
    if not sources:
        sources = tuple(filter(is_scripted, config.source)) if problems else ()
        # Scripted sources play fresh problems instead.
        parts: tuple[list[Transcript], list[Transcript]] = ([], [])
        for transcript in taught:
            fresh = is_scripted(transcript.source)
            parts[not fresh and is_held_back(transcript, config)].append(transcript)
        taught, held_back = parts
    scripted = ScriptedPlay(config.eval_split, len(problems), 1, config.seed)
    measured = [row for word in sources for row in read_source(word, workflow, scripted)]
    check_problems(measured, (config.eval_split,))
    measured = [*choose(measured, config, (), SftCounts()), *held_back]
    keys = set(map(problem_key, measured))
    others = [transcript for transcript in taught if problem_key(transcript) not in keys]
    counts.left_out["measured, too"] += len(taught) - len(others)
    counts.used -= len(taught) - len(others)
    return others, measured


def check_problems(
    transcripts: Iterable[Transcript], splits: Sequence[str], held_out: Iterable[Problem] = ()
) -> None:
    """Refuse transcripts of problems that are of other splits, or whose text is held out."""
    texts = {problem.text: problem.id for problem in held_out}
    for transcript in transcripts:
        parts = transcript.problem.split("/", 3)  # task/split/seed/index
        split = parts[1] if len(parts) == 4 else ""
        if split and split not in splits:
            raise UsageError(
                f"{transcript.source} holds replies to problems of the split {split!r} (the first "
                f"is {transcript.problem}), and only those of {' and '.join(splits)} may be used "
                f"here: play others with `flowzoo eval --split {splits[0]}`"
            )
        if transcript.text and transcript.text in texts:
            raise UsageError(
                f"{transcript.source} holds replies to {transcript.problem}, whose text is that of "
                f"the held-out problem {texts[transcript.text]}: leave it out"
            )


def choose(
    transcripts: Sequence[Transcript],
    config: SftConfig,
    held_out: Sequence[Problem],
    counts: SftCounts,
) -> list[Transcript]:
    """Return the transcripts to use, in their order."""
    counts.episodes += len(transcripts)
    texts = [problem.text.strip() for problem in held_out]
    good = list[Transcript]()
    for transcript in transcripts:
        reason, least = "", config.threshold
        if least is None:
            least = -math.inf if transcript.pays else 1.0
        if transcript.cut_off:
            reason = "cut off at the limit of turns"
        elif transcript.score is not None and transcript.score < least:
            reason = "score below the threshold"
        # Chats name no problem that could be looked up.
        elif not transcript.text and any(
            quotes(message["content"], texts) for message in transcript.replies[-1].messages
        ):
            reason = "quotes a held-out problem"
        if reason:
            counts.left_out[reason] += 1
        else:
            good.append(transcript)
    chosen = best_of(good, config.best) if config.best else good
    counts.left_out["not among the best"] += len(good) - len(chosen)
    counts.used += len(chosen)
    return chosen


def quotes(content: str, texts: Iterable[str]) -> bool:
    """True if `content` has any of `texts` with no letter or digit directly around it."""
    for text in texts:
        start = content.find(text)
        while start >= 0:
            around = content[max(0, start - 1) : start], content[start + len(text) :][:1]
            if not any(part.isalnum() for part in around):
                return True
            start = content.find(text, start + 1)
    return False


def best_of(transcripts: Sequence[Transcript], most: int) -> list[Transcript]:
    """Select the `most` episodes of the highest score of every problem, the first of equals."""
    counts: Counter[str] = Counter()
    chosen = set[int]()
    for transcript in sorted(transcripts, key=lambda transcript: -(transcript.score or 0.0)):
        key = problem_key(transcript)
        counts[key] += 1
        if counts[key] <= most:
            chosen.add(id(transcript))
    return [transcript for transcript in transcripts if id(transcript) in chosen]


def problem_key(transcript: Transcript) -> str:
    """Id of the problem of a transcript; of a chat, a digest of its first messages."""
    if transcript.problem:
        return transcript.problem
    first = transcript.replies[0].messages
    parts = [part for message in first for part in (message["role"], message["content"])]
    return key_digest(*parts).hex()


def is_held_back(transcript: Transcript, config: SftConfig) -> bool:
    """True for a share of the problems, by their keys, which are measured and not trained on."""
    number = key_int("held back", config.seed, problem_key(transcript))
    return number < config.held_back * 2**64


def reason_against(reply: Call, taught: Taught) -> str:
    """Reason why a reply of a kept episode is not taught, or empty."""
    if reply.finish == "length":
        return "cut off at the length limit"
    if reply.shortened:
        return "prompt was shortened"
    if taught != "all" and not reply.strict:
        return "not readable"
    if taught == "right" and reply.role_score is not None and reply.role_score < 1:
        return "did not do its own job"
    return ""


def check_rows(rows: Mapping[str, Sequence[Call]], counts: SftCounts, config: SftConfig) -> None:
    """Refuse policies without a reply, and a stop by losses that nothing is held out for."""
    empty = [name for name, calls in rows.items() if not calls]
    if empty:
        reasons = counts.left_out + counts.replies_left_out
        text = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
        raise UsageError(
            f"no reply is left to teach policy {', '.join(empty)}: of "
            f"{counts.episodes} episodes {counts.used} were kept; left out: "
            f"{text or 'none'}. Lower `threshold`, set `replies` to all, or name more sources"
        )
    if config.stop_patience and not counts.held_out:
        raise UsageError(
            "`stop_patience` compares held-out losses and there is no held-out reply: give "
            "`eval_problems`, `held_back` or `validation`"
        )


def rows_digest(rows: Mapping[str, Sequence[Call]]) -> str:
    """32 hexadecimal digits that identify the rows that are trained on."""
    listed = [row for name in sorted(rows) for row in rows[name]]
    parts = (f"{row.policy} {row.prompt_ids} {row.output_ids}" for row in listed)
    return key_digest(*parts).hex()
