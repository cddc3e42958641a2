"""Transcripts to learn from: scripted experts, evaluations, training runs, files of chats.

Only text is read: a run directory keeps no token ids, and an evaluation may have used another
tokenizer. Known numbers of tokens are compared with.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from flowzoo.agents import PolicyMap
from flowzoo.agents.evaluation.evaluate import call_from_json
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.baselines.run.ledger import check_transcripts
from flowzoo.envs import Call, Message, Workflow
from flowzoo.envs.tools import Tool
from flowzoo.errors import DataError, UsageError
from flowzoo.files import read_rows


@dataclass(frozen=True, slots=True)
class Transcript:
    """An episode, or a chat."""

    source: str
    """Entry of `SftConfig.source`."""
    problem: str
    """Id of the problem; "" where a chat does not say."""
    text: str
    """Text of the problem; "" of a chat."""
    episode: str
    score: float | None
    """None where a chat does not say."""
    cut_off: bool
    """True if the episode ended at its limit of turns."""
    replies: tuple[Call, ...]
    """Without token ids, of which `usage` has the known numbers; the agent of a chat may be ""."""
    pays: bool = False
    """True if scores are pay."""


class ScriptedPlay(NamedTuple):
    """Episodes that scripted experts play."""

    split: str
    problems: int
    samples: int
    seed: int


def is_scripted(word: str) -> bool:
    """True if an entry of `SftConfig.source` names the workflow's own experts."""
    return word.partition(":")[0] == "scripted"


def read_source(word: str, workflow: Workflow, scripted: ScriptedPlay) -> list[Transcript]:
    """Read the transcripts that an entry of `SftConfig.source` names."""
    if is_scripted(word):
        return play_scripted(word, workflow, _skill(word), scripted)
    files = source_files(word)
    if Path(word).is_dir():
        check_transcripts(Path(word), files)
    transcripts = list[Transcript]()
    rows = chain.from_iterable(read_file(file, word, whole=file == Path(word)) for file in files)
    for name, transcript in rows:
        if name not in ("", workflow.name):
            raise UsageError(
                f"the episodes in {word} are of {name}, and {workflow.name} is taught: name "
                f"transcripts of {workflow.name}"
            )
        transcripts.append(transcript)
    return transcripts


def source_files(word: str) -> list[Path]:
    """List the files of a source; none of a scripted one."""
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
    """Play episodes of the workflow's own experts."""
    policy = ScriptedPolicy(workflow, skill, plan.seed)
    rollout = Rollout(workflow, PolicyMap.shared(policy, workflow.role_counts()), seed=plan.seed)
    jobs = [
        EpisodeJob(problem, sample)
        for problem in distinct_problems(workflow.task, plan.split, plan.problems, option="--n")
        for sample in range(plan.samples)
    ]
    return [_episode(record.to_json(), word)[1] for record in rollout.run(jobs)]


def read_file(path: Path, word: str, *, whole: bool) -> list[tuple[str, Transcript]]:
    """Read the transcripts in a JSON Lines file, each with its workflow ("" of chats).

    A last line that cannot be read is an error in a `whole` file; a process may have died while
    writing another.
    """
    number = 0

    def read(row: Any) -> tuple[str, Transcript]:
        nonlocal number
        number += 1
        return _episode(row, word) if "calls" in row else ("", _chat(row, word, number))

    what = 'an episode, or a chat {"messages": [{"role": ..., "content": ...}, ...]}'
    rows = read_rows(path, read, what)
    # `read_rows` passes over a torn last line, which a complete file does not have.
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
    return row["workflow"], Transcript(
        source=word,
        problem=row["problem"],
        text=row["text"],
        episode=row["episode"],
        score=float(row["score"]),
        cut_off=row["truncated"],
        replies=tuple(_reply(call, "pay" in row) for call in row["calls"]),
        pays="pay" in row,
    )


_OF_RUNS = ("prompt_tokens", "output_tokens", "advantage")
"""Fields that the transcripts of a run have in place of ids."""


def _reply(row: Mapping[str, Any], pays: bool) -> Call:
    """Read a call without its ids: evaluations keep them, and runs the numbers of tokens."""
    counts = {
        part: row[f"{part}_tokens"] if f"{part}_tokens" in row else len(row[f"{part}_ids"])
        for part in ("prompt", "output")
    }
    for schema in row.get("tools", ()):
        Tool.of_schema(schema)  # what is no tool is refused here
    saved = {name: row[name] for name in row if name not in _OF_RUNS}
    unread = {"prompt_ids": (), "output_ids": (), "logps": (), "usage": counts}
    return call_from_json(saved | unread | ({"role_score": None} if pays else {}))


def _chat(row: Mapping[str, Any], word: str, number: int) -> Transcript:
    """Read a chat; every message of the assistant is a reply to the messages before it."""
    messages = tuple(map(_message, row["messages"]))
    replies = list[Call]()
    score = row.get("score")
    agent, problem = (
        "" if row.get(name) is None else str(row[name]) for name in ("agent", "problem")
    )
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        if index == 0 or messages[index - 1]["role"] != "user":
            raise ValueError("an assistant's message must follow a user's")
        replies.append(
            Call(
                problem, f"{word}:{number}", agent, role="", slot=0, turn=len(replies), phase=0,
                messages=messages[:index], reply=message["content"], strict=True, lenient=True,
                role_score=None, parts={}, reward=0.0, state_hash="", prompts="",
            )
        )  # fmt: skip
    if not replies:
        raise ValueError("no message of an assistant")
    return Transcript(
        source=word,
        problem=problem,
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
