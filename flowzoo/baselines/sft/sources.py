"""Transcripts to learn from: scripted experts, evaluations, training runs, files of chats.

What is read is text: a run directory keeps no token ids, and those of an evaluation may be another
tokenizer's. Where the numbers of tokens are known they are kept, to be compared with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flowzoo.agents import PolicyMap
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.baselines.run.digests import check_transcripts
from flowzoo.envs import Message, Workflow
from flowzoo.errors import DataError, UsageError
from flowzoo.files import read_rows


class SampledLength(NamedTuple):
    """Tokens of a reply as it was sampled, its end of turn included."""

    prompt: int
    reply: int


@dataclass(frozen=True, slots=True)
class RecordedReply:
    """A chat and what was answered."""

    agent: str
    """Agent or role that spoke; "" where a chat does not say."""
    turn: int
    messages: tuple[Message, ...]
    reply: str
    readable: bool = True
    """The strict parser of the ask could read it."""
    role_score: float | None = None
    """How well it did its role's own job; None: not defined."""
    cut_off: bool = False
    """It ran into the length limit."""
    shortened: bool = False
    """Its prompt was shortened, so that `messages` are not what was answered."""
    length: SampledLength | None = None


@dataclass(frozen=True, slots=True)
class Transcript:
    """An episode, or a chat."""

    source: str
    """The word that it came from."""
    problem: str
    """Id of the problem; "" where a chat does not say."""
    text: str
    """The problem's; "" of a chat."""
    episode: str
    score: float | None
    """None where a chat does not say."""
    cut_off: bool
    """The episode ended at its limit of turns."""
    replies: tuple[RecordedReply, ...]


class ScriptedPlay(NamedTuple):
    """Which episodes scripted experts play."""

    split: str
    problems: int
    samples: int
    seed: int


def is_scripted(word: str) -> bool:
    """Whether a word of `SftConfig.source` stands for the workflow's own experts."""
    return word.partition(":")[0] == "scripted"


def read_source(word: str, workflow: Workflow, scripted: ScriptedPlay) -> list[Transcript]:
    """The transcripts that a word of `SftConfig.source` names.

    Raises:
        UsageError: nothing there, or episodes of another workflow.
        DataError: a line that is neither an episode nor a chat.
    """
    if is_scripted(word):
        return play_scripted(word, workflow, _skill(word), scripted)
    files = source_files(word)
    if Path(word).is_dir():
        check_transcripts(Path(word), files)
    read = [one for file in files for one in read_file(file, word, whole=file == Path(word))]
    found = list[Transcript]()
    for theirs, transcript in read:
        if theirs not in ("", workflow.name):
            raise UsageError(
                f"the episodes in {word} are of {theirs}, and {workflow.name} is taught: name "
                f"transcripts of {workflow.name}"
            )
        found.append(transcript)
    return found


def source_files(word: str) -> list[Path]:
    """The files of a source; none of a scripted one.

    Raises:
        UsageError: there are none, or `scripted:P` without a probability.
    """
    if is_scripted(word):
        _skill(word)
        return []
    path = Path(word)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(
            f"source {word!r} is no file or folder: expected scripted, scripted:P, a folder of "
            "`flowzoo eval --out`, a run directory, or a .jsonl file"
        )
    files = [path / "episodes.jsonl"]
    if not files[0].is_file():
        files = sorted((path / "transcripts").glob("train-*.jsonl"))
    if not files:
        raise UsageError(
            f"source {word!r} holds no transcripts: expected episodes.jsonl (of `flowzoo eval "
            "--out`) or transcripts/train-*.jsonl (of a training run, every "
            "`transcripts_every` steps)"
        )
    return files


def play_scripted(
    word: str, workflow: Workflow, skill: float, plan: ScriptedPlay
) -> list[Transcript]:
    """Episodes of the workflow's own experts."""
    policy = ScriptedPolicy(workflow, skill, plan.seed)
    rollout = Rollout(workflow, PolicyMap.shared(policy, workflow.role_counts()), seed=plan.seed)
    jobs = [
        EpisodeJob(problem, sample)
        for problem in distinct_problems(workflow.task, plan.split, plan.problems, option="--n")
        for sample in range(plan.samples)
    ]
    return [_episode(record.to_json(), word)[1] for record in rollout.run(jobs)]


def read_file(path: Path, word: str, *, whole: bool) -> list[tuple[str, Transcript]]:
    """The transcripts in a JSON Lines file, each with its workflow ("" of chats).

    A last line that cannot be read is an error in a `whole` file; a process may have died while
    writing another.

    Raises:
        DataError: a line that is neither an episode nor a chat.
    """
    number = 0

    def read(row: Any) -> tuple[str, Transcript]:
        nonlocal number
        number += 1
        return _episode(row, word) if "calls" in row else ("", _chat(row, word, number))

    what = 'an episode, or a chat {"messages": [{"role": ..., "content": ...}, ...]}'
    rows = read_rows(path, read, what)
    lines = path.read_text(encoding="utf-8").splitlines()
    if whole and len(rows) < len(lines):
        raise DataError(f"{path}, line {len(lines)}: not {what}")
    return rows


def _skill(word: str) -> float:
    text = word.partition(":")[2]
    try:
        return float(text) if text else 1.0
    except ValueError:
        raise UsageError(
            f"expected scripted or scripted:P with a probability P in [0, 1], got {word!r}"
        ) from None


def _episode(row: Mapping[str, Any], word: str) -> tuple[str, Transcript]:
    """A line of episodes.jsonl or of a run's transcripts."""
    return row["workflow"], Transcript(
        source=word,
        problem=row["problem"],
        text=row["text"],
        episode=row["episode"],
        score=float(row["score"]),
        cut_off=row["truncated"],
        replies=tuple(_reply(call) for call in row["calls"]),
    )


def _reply(call: Mapping[str, Any]) -> RecordedReply:
    length = SampledLength(_count(call, "prompt"), _count(call, "output"))
    return RecordedReply(
        agent=call["agent"],
        turn=call["turn"],
        messages=tuple(call["messages"]),
        reply=call["reply"],
        readable=call["strict"],
        role_score=call["role_score"],
        cut_off=call["finish"] == "length",
        shortened=call["shortened"] > 0,
        length=length if length.prompt and length.reply else None,
    )


def _count(call: Mapping[str, Any], part: str) -> int:
    """Tokens of the prompt or the output: evaluations keep the ids, runs the number."""
    return call[f"{part}_tokens"] if f"{part}_tokens" in call else len(call[f"{part}_ids"])


def _chat(row: Mapping[str, Any], word: str, number: int) -> Transcript:
    """A chat: every message of the assistant is a reply to those before it.

    Raises:
        ValueError: another layout; `read_rows` says which line.
    """
    messages = tuple(_message(one) for one in row["messages"])
    replies = list[RecordedReply]()
    agent, score = str(row.get("agent", "")), row.get("score")
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        if place == 0 or messages[place - 1]["role"] != "user":
            raise ValueError("an assistant's message must follow a user's")
        replies.append(RecordedReply(agent, len(replies), messages[:place], message["content"]))
    if not replies:
        raise ValueError("no message of an assistant")
    return Transcript(
        source=word,
        problem=str(row.get("problem", "")),
        text="",
        episode=f"{word}:{number}",
        score=None if score is None else float(score),
        cut_off=False,
        replies=tuple(replies),
    )


def _message(value: Any) -> Message:
    if set(value) != {"role", "content"} or not isinstance(value["content"], str):
        raise ValueError(f"a message has role and content, both text, got {json.dumps(value):.80}")
    if value["role"] not in ("system", "user", "assistant"):
        raise ValueError(f"a message's role is system, user or assistant, got {value['role']!r}")
    return {"role": value["role"], "content": value["content"]}


def all_sources(
    words: Sequence[str], workflow: Workflow, scripted: ScriptedPlay
) -> list[Transcript]:
    """The transcripts of all words, in their order.

    Raises:
        UsageError, DataError: see `read_source`.
    """
    return [one for word in words for one in read_source(word, workflow, scripted)]
