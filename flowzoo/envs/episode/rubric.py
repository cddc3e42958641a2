"""Rewards by a rubric: weighted criteria that functions, the task or a judge score."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from flowzoo.envs.episode.faults import UngradedError, is_scale
from flowzoo.envs.episode.turn import Turn
from flowzoo.envs.script import Judge, JudgeResult, Reply, Script
from flowzoo.envs.settings import check_number
from flowzoo.envs.workflow import FinishedEpisode, Workflow
from flowzoo.errors import UsageError, unknown
from flowzoo.files import read_toml
from flowzoo.functions import FunctionSetting
from flowzoo.permission import PERMISSION

TASK_SCORE = "score"
"""Value of `function` for the task's own score."""
FACT = "rubric/"
"""Prefix of the facts with the scores of judged criteria: 0 to 1, or None if unreadable."""
_KEYS = ("name", "weight", "function", "question", "scale", "role")


class Criterion(NamedTuple):
    """A named part of a rubric: a function, or a question for a judge."""

    name: str
    weight: float
    function: Callable[[FinishedEpisode], float] | None = None
    """Function from a finished episode to its score, 0 to 1; None: a judge decides."""
    question: str = ""
    scale: tuple[float, float] = (0.0, 1.0)
    role: str = ""
    """Role whose last reply is judged; empty: the last reply of the episode."""


class Rubric:
    """A reward: the weighted mean of its criteria, 0 to 1."""

    def __init__(self, path: str) -> None:
        """Read a TOML file with a table `[[criterion]]` per criterion; see docs/hooks.md.

        Raises:
            DataError: the file does not exist or is not TOML.
            UsageError: it is not a rubric.
        """
        self.path = path
        tables, data = read_toml(Path(path)), Path(path).read_bytes()
        PERMISSION.note(path, tables)
        rows = tables.pop("criterion", None)
        if tables or not isinstance(rows, list) or not rows:
            raise UsageError(
                f"rubric {path}: expected only tables [[criterion]], got "
                f"{', '.join(tables) or 'none'}"
            )
        self.criteria = tuple(_criterion(f"rubric {path}", row) for row in rows)
        names = [criterion.name for criterion in self.criteria]
        if len(set(names)) < len(names):
            raise UsageError(f"rubric {path}: every criterion needs a unique name, got {names}")
        functions = [
            c.function.digest for c in self.criteria if isinstance(c.function, FunctionSetting)
        ]
        self.digest = hashlib.sha256(b"\0".join([data, *map(str.encode, functions)])).hexdigest()

    @property
    def judged(self) -> tuple[Criterion, ...]:
        """The criteria that a judge decides."""
        return tuple(criterion for criterion in self.criteria if criterion.function is None)

    def __call__(self, episode: FinishedEpisode) -> float:
        """The reward of a finished episode.

        A judged criterion scores 0 if its role wrote nothing.

        Raises:
            UngradedError: a verdict could not be read.
            UsageError: a function does not return a number from 0 to 1.
        """
        total = sum(each.weight * self._value(each, episode) for each in self.criteria)
        return min(1.0, total / sum(each.weight for each in self.criteria))

    def _value(self, criterion: Criterion, episode: FinishedEpisode) -> float:
        if criterion.function is not None:
            value = criterion.function(episode)
            check_number(f"rubric {self.path}: criterion {criterion.name}", value, 0, 1)
            return float(value)
        score = episode.facts.get(FACT + criterion.name, 0.0)
        if score is None:
            reason = f"the judge's verdict on criterion {criterion.name!r} could not be read"
            raise UngradedError(
                f"problem {episode.problem.id}: {reason}, so the episode has no reward",
                episode.problem.id,
                [{"agent": agent, "reply": text} for agent, text in episode.replies],
                reason,
            )
        return score

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.path,)


def task_score(episode: FinishedEpisode) -> float:
    """The score of the task's grader."""
    return episode.score


def _criterion(source: str, row: object) -> Criterion:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str) or not row["name"]:
        raise UsageError(f"{source}: every criterion needs a name, got {row!r:.80}")
    name, where = row["name"], f"{source}: criterion {row['name']!r}"
    for key in row:
        if key not in _KEYS:
            raise unknown(f"key of {where}", key, _KEYS)
    weight = row.get("weight", 1.0)
    check_number(f"{where}: weight", weight, 0)
    if weight == 0:
        raise UsageError(f"{where}: the weight must be above 0, got 0: leave the criterion out")
    function, question, role = (row.get(key, "") for key in ("function", "question", "role"))
    if not all(isinstance(text, str) for text in (function, question, role)):
        raise UsageError(f"{where}: function, question and role must be texts")
    if bool(function) == bool(question.strip()):
        raise UsageError(f"{where}: expected exactly one of `function` and `question`")
    if function:
        if "scale" in row or "role" in row:
            raise UsageError(f"{where}: scale and role belong to a `question`: leave them out")
        if function == TASK_SCORE:
            return Criterion(name, float(weight), task_score)
        return Criterion(name, float(weight), FunctionSetting(f"{where}: function", function))
    scale = row.get("scale", [0, 1])
    scale = tuple(scale) if isinstance(scale, list) else scale
    if not is_scale(scale):
        raise UsageError(
            f"{where}: scale must be [lowest, highest], of at most six digits, got {scale!r:.60}"
        )
    return Criterion(name, float(weight), None, question, scale, role)


def with_rubric(script: Script, workflow: Workflow, turns: Sequence[Turn]) -> Script:
    """Run `script`, then yield the questions of the reward's judged criteria.

    `turns` is the episode's list, which grows. The scores become facts.
    """
    outcome = yield from script
    last: dict[str, Reply] = {}
    for turn in turns:
        if turn.reply is not None:
            last[workflow.agents[turn.agent][0]] = last[""] = turn.reply
    criteria = [criterion for criterion in workflow.judged_criteria if criterion.role in last]
    if not criteria:
        return outcome
    verdicts: list[JudgeResult] = yield [
        Judge(last[criterion.role], criterion.question, criterion.scale, criterion.name)
        for criterion in criteria
    ]
    facts = {FACT + c.name: verdict.score for c, verdict in zip(criteria, verdicts, strict=True)}
    return outcome._replace(facts={**outcome.facts, **facts})
