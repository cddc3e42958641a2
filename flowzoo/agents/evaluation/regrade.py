"""Stored episodes judged again: the same replies, by the grader and the sandbox of today.

A script runs again over the stored replies, and every effect (grades, programs, searches, tools)
is carried out anew. Nothing is sampled: a judge's verdict is read again from its stored reply.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from flowzoo.agents.evaluation.intervals import Ends, paired_interval
from flowzoo.agents.evaluation.summary import mean, means_by
from flowzoo.envs import Problem, Workflow
from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.episode.faults import UngradedError
from flowzoo.envs.episode.recording import record
from flowzoo.envs.readers.judgments import read_judgment
from flowzoo.envs.records import EpisodeRecord
from flowzoo.envs.script import CountedReply, EffectResult, Judge, ReplyCounts
from flowzoo.envs.tasks.task import get_problem
from flowzoo.errors import UsageError
from flowzoo.files import read_rows

Saved = Mapping[str, Any]
"""An episode of `episodes.jsonl` or of a transcript file: see `EpisodeRecord.to_json`."""
State = Literal["same", "changed", "unknown", "other course", "other problem"]
"""`unknown`: today's verdict is unknown, which is no score. `other course`: today's results lead
the script to a prompt that no stored reply answers. `other problem`: the task has other problems
by now."""
_AT_ONCE = 512
"""Episodes that play side by side, so that graders and sandboxes get batches."""
_EPISODE_FIELDS = ("problem", "episode", "text", "gold", "score", "answer", "calls")
_CALL_FIELDS = (
    "agent", "messages", "reply", "strict", "lenient", "role_score", "prompts", "finish",
)  # fmt: skip
_POSITION = re.compile(r"(?P<task>[^/]*)/(?P<split>[^/]*)/.*?(?P<index>\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RegradedEpisode:
    """One stored episode with its verdict of then and of today."""

    episode: str
    problem: str
    state: State
    before: float
    """Score as it was stored."""
    after: float | None
    """Score of today; None: there is none, and `reasons` says why."""
    reasons: tuple[str, ...] = ()
    """Differences, e.g. `score 0 -> 1` and `generator: role score 0 -> 1`."""


class _OtherCourseError(Exception):
    """The script asks for what was not stored."""


@dataclass(slots=True)
class _Replay:
    """A stored episode on its way through the script."""

    saved: Saved
    episode: Episode
    judged: int = 0
    """Verdicts of judges that were read."""
    reason: str = ""
    """Why there is no score, if there is none."""
    state: State = "same"

    @property
    def ended(self) -> bool:
        """True if the episode has a score, or cannot get one."""
        return bool(self.reason) or self.episode.done

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Note why there can be no score, if that turns out."""
        try:
            yield
        except _OtherCourseError as error:
            self.state, self.reason = "other course", str(error)
        except UngradedError as error:  # of a program, or of a rubric's criterion
            self.state, self.reason = "unknown", error.reason

    def answer(self) -> None:
        """Give the open turns their stored replies."""
        calls = self.saved["calls"]
        for turn in self.episode.waiting:
            call = calls[turn.call] if turn.call < len(calls) else None
            if call is None or call["agent"] != turn.agent:
                raise _OtherCourseError(f"{turn.agent} is asked, and no reply was stored")
            same_texts = call["prompts"] == self.episode.workflow.prompts_id
            if same_texts and json.loads(json.dumps(turn.observe())) != list(call["messages"]):
                raise _OtherCourseError(f"{turn.agent} is asked something else")
            self.episode.reply(turn.agent, _reply(self.episode.workflow, call))

    def verdict(self, effect: Judge) -> EffectResult:
        """Read the stored reply of a judge again."""
        rows = self.saved.get("judgments", ())
        if self.judged == len(rows):
            raise _OtherCourseError("a judge is asked, and no reply was stored")
        row = rows[self.judged]
        self.judged += 1
        if (row["call"], row["name"]) != (effect.of.call, effect.name):
            raise _OtherCourseError("a judge is asked something else")
        return read_judgment(effect, self.episode.problem.text, row["reply"])


def _reply(workflow: Workflow, call: Mapping[str, Any]) -> str:
    if not workflow.counts_replies:
        return call["reply"]
    usage = call.get("usage") or {}
    prompt = call.get("prompt_tokens") or len(call.get("prompt_ids", ())) or usage.get("prompt")
    output = call.get("output_tokens") or len(call.get("output_ids", ())) or usage.get("output")
    finish = "length" if call["finish"] == "length" else "stop"
    return CountedReply(call["reply"], ReplyCounts(finish, prompt or 0, output or 0))


def read_saved(path: Path) -> list[Saved]:
    """The complete lines of a file of episodes.

    Raises:
        DataError: a line is not an episode; the message names it.
    """

    def check_fields(row: Saved) -> Saved:
        itemgetter(*_EPISODE_FIELDS)(row)
        for call in row["calls"]:
            itemgetter(*_CALL_FIELDS)(call)
        return row

    return read_rows(path, check_fields, "an episode")


def find_problem(workflow: Workflow, saved: Saved) -> Problem | None:
    """The problem of a stored episode; None if the task has another one in its place."""
    position = _POSITION.fullmatch(saved["problem"])
    if position is None:
        return None
    try:
        problem = get_problem(workflow.task, int(position["index"]), position["split"])
    except UsageError:  # a shorter data file
        return None
    stored = saved["problem"], saved["text"], saved["gold"]
    return problem if (problem.id, problem.text, problem.gold) == stored else None


def regrade(
    workflow: Workflow,
    episodes: Sequence[Saved],
    on_done: Callable[[int], None] = lambda done: None,
) -> list[RegradedEpisode]:
    """Judge stored episodes again, in their order; `on_done` gets the number of finished ones.

    Raises:
        WorkflowError: the script fails on the stored replies.
    """
    regraded: list[RegradedEpisode] = []
    waiting = iter(episodes)
    while batch := list(islice(waiting, _AT_ONCE)):
        regraded += _regrade_batch(workflow, batch)
        on_done(len(regraded))
    return regraded


def _regrade_batch(workflow: Workflow, batch: Sequence[Saved]) -> Iterator[RegradedEpisode]:
    problems = [find_problem(workflow, saved) for saved in batch]
    replays = [
        None if problem is None else _Replay(saved, Episode(workflow, problem, saved["episode"]))
        for saved, problem in zip(batch, problems, strict=True)
    ]
    running = [replay for replay in replays if replay is not None]
    while running := [replay for replay in running if not replay.ended]:
        _resolve_effects(workflow, [replay for replay in running if replay.episode.effects])
        for replay in running:
            if not replay.ended and not replay.episode.effects:
                with replay.judging():
                    replay.answer()
    for saved, replay in zip(batch, replays, strict=True):
        yield _outcome(saved, replay)


def _resolve_effects(workflow: Workflow, replays: Sequence[_Replay]) -> None:
    places = [
        (replay, index, effect)
        for replay in replays
        for index, effect in enumerate(replay.episode.effects)
    ]
    jobs = [job for job in places if not isinstance(job[2], Judge)]
    requests = [(replay.episode.problem, effect) for replay, _, effect in jobs]
    answers = resolve(workflow.task, requests) if requests else ()
    results = {
        (id(replay), index): result
        for (replay, index, _), result in zip(jobs, answers, strict=True)
    }
    for replay in replays:
        with replay.judging():
            for index, effect in enumerate(replay.episode.effects):
                if isinstance(effect, Judge):
                    results[id(replay), index] = replay.verdict(effect)
            count = len(replay.episode.effects)
            replay.episode.resolve([results[id(replay), index] for index in range(count)])


def _outcome(saved: Saved, replay: _Replay | None) -> RegradedEpisode:
    names = saved["episode"], saved["problem"]
    if replay is None:
        reason = "the task has another problem of this name"
        return RegradedEpisode(*names, "other problem", saved["score"], None, (reason,))
    now: EpisodeRecord | None = None
    if not replay.reason:
        with replay.judging():
            now = record(replay.episode)
    if now is None:
        return RegradedEpisode(*names, replay.state, saved["score"], None, (replay.reason,))
    reasons = tuple(dict.fromkeys(_differences(saved, now)))
    state: State = "changed" if reasons else "same"
    return RegradedEpisode(*names, state, saved["score"], now.score, reasons)


def _differences(saved: Saved, now: EpisodeRecord) -> Iterator[str]:
    if saved["answer"] != now.answer:
        yield "another answer is read"
    if saved["score"] != now.score:
        yield f"score {saved['score']:g} -> {now.score:g}"
    if len(saved["calls"]) != len(now.calls):
        yield f"{len(saved['calls'])} calls -> {len(now.calls)}"
    for before, call in zip(saved["calls"], now.calls, strict=False):
        for name in ("strict", "lenient"):
            reads = ["read" if read else "not read" for read in (before[name], getattr(call, name))]
            if before[name] != getattr(call, name):
                yield f"{call.role}: {reads[0]} -> {reads[1]} ({name})"
        if before["role_score"] != call.role_score:
            scores = [_score(score) for score in (before["role_score"], call.role_score)]
            yield f"{call.role}: role score {scores[0]} -> {scores[1]}"


def _score(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"


@dataclass(frozen=True, slots=True)
class Regrading:
    """Stored episodes judged again, summed up."""

    episodes: Sequence[RegradedEpisode]

    def count(self, state: State) -> int:
        """Number of episodes in a state."""
        return sum(episode.state == state for episode in self.episodes)

    @property
    def scores(self) -> list[tuple[float, float]]:
        """Scores of then and of today, of the episodes that have both."""
        return [(row.before, row.after) for row in self.episodes if row.after is not None]

    def accuracies(self) -> tuple[float, float]:
        """Mean scores of then and of today, of the episodes that have both."""
        before, after = zip(*self.scores, strict=True)
        return mean(before), mean(after)

    def interval(self) -> Ends | None:
        """95 % interval of the difference, paired by problem; see `paired_interval`."""
        scored = [(row.problem, row.before, row.after) for row in self.episodes]
        pairs = [(name, before, after) for name, before, after in scored if after is not None]
        before = means_by((name, score) for name, score, _ in pairs)
        after = means_by((name, score) for name, _, score in pairs)
        return paired_interval([*before.values()], [*after.values()])

    def reasons(self) -> dict[str, list[str]]:
        """Episodes by what differs, the most frequent first."""
        episodes: dict[str, list[str]] = {}
        for row in self.episodes:
            for reason in row.reasons:
                episodes.setdefault(reason, []).append(row.episode)
        return dict(sorted(episodes.items(), key=lambda item: -len(item[1])))
