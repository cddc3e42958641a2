"""Which recorded replies are taught: of good episodes, of problems that are not held out.

The best of n (rejection sampling, e.g. section 2.2 of arXiv 2308.01825): episodes that reach a
score stay, of every problem the best, and of those the replies that did their own job. What is left
out is counted under its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowzoo.baselines.settings.sft import SftConfig, Taught
from flowzoo.baselines.sft.sources import RecordedReply, Transcript
from flowzoo.envs import Problem
from flowzoo.errors import UsageError
from flowzoo.seeding import key_digest, key_int

TRAINABLE = ("train", "pretrain")
"""Splits whose problems may be trained on."""


@dataclass(slots=True)
class SftCounts:
    """What became of the transcripts; `left_out` has counts by reason."""

    episodes: int = 0
    kept: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    replies: int = 0
    """In the episodes that were kept."""
    replies_left_out: Counter[str] = field(default_factory=Counter)
    trained: int = 0
    held_out: int = 0
    """Replies of the held-out loss."""
    compared: int = 0
    """Taught replies whose sampled numbers of tokens are known."""
    as_sampled: int = 0
    """… and are those of prompt and reply as they are taught."""

    def plain(self) -> dict[str, Any]:
        """As plain values, for a summary."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "left_out": dict(self.left_out),
            "replies_left_out": dict(self.replies_left_out),
        }


def split_of_id(problem: str) -> str:
    """The split in a problem's id, `task/split/seed/index`; "" where it has none."""
    parts = problem.split("/", 3)
    return parts[1] if len(parts) == 4 else ""


def check_problems(
    transcripts: Iterable[Transcript], splits: Sequence[str], held_out: Iterable[Problem] = ()
) -> None:
    """Refuse transcripts of problems that are not of `splits`, or whose text is held out.

    Raises:
        UsageError: there is one; the message names it.
    """
    texts = {problem.text: problem.id for problem in held_out}
    for one in transcripts:
        split = split_of_id(one.problem)
        if split and split not in splits:
            raise UsageError(
                f"{one.source} holds replies to problems of the split {split!r} (the first is "
                f"{one.problem}), and only those of {' and '.join(splits)} may be used here: play "
                f"others with `flowzoo eval --split {splits[0]}`"
            )
        if one.text and one.text in texts:
            raise UsageError(
                f"{one.source} holds replies to {one.problem}, whose text is that of the held-out "
                f"problem {texts[one.text]}: leave it out"
            )


def quotes(content: str, texts: Iterable[str]) -> bool:
    """Whether any of `texts` stands in `content`, with no letter or digit going on around it."""
    for text in texts:
        place = content.find(text)
        while place >= 0:
            around = content[max(0, place - 1) : place], content[place + len(text) :][:1]
            if not any(part.isalnum() for part in around):
                return True
            place = content.find(text, place + 1)
    return False


def choose(
    transcripts: Sequence[Transcript],
    config: SftConfig,
    held_out: Sequence[Problem],
    counts: SftCounts,
) -> list[Transcript]:
    """The transcripts to keep, in their order.

    Chats name no problem that could be looked up, so those that quote a held-out one are left out.
    """
    counts.episodes += len(transcripts)
    texts = [problem.text.strip() for problem in held_out]
    good = list[Transcript]()
    for one in transcripts:
        reason = ""
        if one.cut_off:
            reason = "cut off at the limit of turns"
        elif one.score is not None and one.score < config.threshold:
            reason = "score below the threshold"
        elif not one.text and _quotes_any(one, texts):
            reason = "quotes a held-out problem"
        if reason:
            counts.left_out[reason] += 1
        else:
            good.append(one)
    kept = best_of(good, config.best) if config.best else good
    counts.left_out["not among the best"] += len(good) - len(kept)
    counts.kept += len(kept)
    return kept


def best_of(transcripts: Sequence[Transcript], most: int) -> list[Transcript]:
    """Of every problem the `most` episodes of the highest score, of equals the first."""
    ranked = sorted(
        range(len(transcripts)), key=lambda place: (-(transcripts[place].score or 0.0), place)
    )
    taken: Counter[str] = Counter()
    chosen = list[int]()
    for place in ranked:
        key = problem_key(transcripts[place])
        if taken[key] < most:
            taken[key] += 1
            chosen.append(place)
    return [transcripts[place] for place in sorted(chosen)]


def problem_key(one: Transcript) -> str:
    """What names the problem of a transcript: its id, or what a chat begins with."""
    if one.problem:
        return one.problem
    first = one.replies[0].messages
    parts = [part for message in first for part in (message["role"], message["content"])]
    return key_digest(*parts).hex()


def hold_back(
    transcripts: Sequence[Transcript], share: float, seed: int
) -> tuple[list[Transcript], list[Transcript]]:
    """Those to train on and those to measure: a share of the problems, drawn by their keys."""
    parts: tuple[list[Transcript], list[Transcript]] = ([], [])
    for one in transcripts:
        held = key_int("held back", seed, problem_key(one)) < share * 2**64
        parts[held].append(one)
    return parts


def reason_against(reply: RecordedReply, taught: Taught) -> str:
    """Why a reply of a kept episode is not taught, or ""."""
    if reply.cut_off:
        return "cut off at the length limit"
    if reply.shortened:
        return "prompt was shortened"
    if taught != "all" and not reply.readable:
        return "not readable"
    if taught == "right" and reply.role_score is not None and reply.role_score < 1:
        return "did not do its own job"
    return ""


def _quotes_any(one: Transcript, texts: Sequence[str]) -> bool:
    return any(quotes(message["content"], texts) for message in one.replies[-1].messages)
