"""Running a script to where it waits: what it yields, opened as turns and effects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowzoo.envs.episode.faults import (
    WorkflowError,
    check_note,
    effect_fault,
    is_chat,
    outcome_fault,
    script_failure,
)
from flowzoo.envs.episode.replay import ReplayTrace, check_effects, check_turns
from flowzoo.envs.episode.turns import Turn
from flowzoo.envs.script import (
    RESULTS,
    Ask,
    Effect,
    EffectResult,
    InterimScore,
    Outcome,
    RoleScore,
    Run,
    Script,
)
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.wording import framed
from flowzoo.envs.workflow import MOST_CALLS, Workflow
from flowzoo.errors import UsageError, unknown

LogEntry = str | EffectResult


class ScriptRun:
    """A script in progress and what it waits for; `Episode` gives it that, and keeps the log."""

    __slots__ = (
        "_before",
        "_buffer",
        "_counts",
        "_lone",
        "_most_calls",
        "_most_unasked",
        "_requested",
        "_script",
        "_unasked",
        "asks",
        "done",
        "effects",
        "forms",
        "interim_phase",
        "interim_score",
        "log",
        "max_cycles",
        "outcome",
        "phases",
        "problem",
        "role_scores",
        "truncated",
        "turns",
        "workflow",
    )  # fmt: skip

    workflow: Workflow
    problem: Problem
    max_cycles: int | None

    def _restart(self, before: ReplayTrace | None) -> None:
        """Begin the script; with `before` it has to ask what it asked then."""
        self.log: list[LogEntry] = []
        self.turns: list[Turn] = []
        """Every turn opened so far, in call order."""
        self.role_scores: dict[int, float] = {}
        self.forms: dict[int, float] = {}
        self.interim_score: float | None = None
        """What the episode would score if it ended here, where the script has said so."""
        self.interim_phase = 0
        """Number of phases that had been opened when the script said so."""
        self.phases = 0
        self.asks: tuple[Turn, ...] = ()
        self.effects: tuple[Effect, ...] = ()
        self.outcome: Outcome | None = None
        self.done = False
        self.truncated = False
        self._buffer: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._lone = False
        self._before = before
        self._requested: list[Effect] = []
        self._unasked = 0
        """Effects and notes that were yielded since the last call."""
        self._most_calls = self._call_limit()
        self._most_unasked = max(MOST_CALLS, self._most_calls)
        self._script: Script = self.workflow.script(self.problem)
        self._advance(None)

    @property
    def requested(self) -> Sequence[Effect]:
        """Every effect requested so far; results stand in `log` in the same order."""
        return self._requested

    def _call_limit(self) -> int:
        """The workflow's limit; only one that was set holds beside `max_cycles`, which ends all."""
        limit = self.workflow.call_limit
        if self.max_cycles is None or self.workflow.max_calls is not None:
            return limit
        return max(limit, self.max_cycles * len(self.workflow.agents))

    def _advance(self, value: Any) -> None:
        """Send `value` into the script, and open what it yields next."""
        try:
            item = self._script.send(value)
            while type(item) is RoleScore or type(item) is InterimScore:
                if self._unasked == self._most_unasked:
                    break
                self._unasked += 1
                self._note(item)
                item = self._script.send(None)
        except StopIteration as stop:
            fault = outcome_fault(stop.value)
            if fault:
                raise self._failure(fault) from None
            self.outcome = stop.value
            self.done = True
        except Exception as error:
            said = str(error) if isinstance(error, UsageError) else f"play() raised {error!r}"
            raise self._failure(said, error) from error
        else:
            self._open(item)

    def _note(self, item: RoleScore | InterimScore) -> None:
        check_note(item)
        if isinstance(item, InterimScore):
            self.interim_score, self.interim_phase = float(item.score), self.phases
            return
        of, value, form = item
        self.role_scores[of.call] = float(value)
        if form is not None:
            self.forms[of.call] = float(form)

    def _open(self, item: Any) -> None:
        kind = type(item)
        self._lone = kind is not list
        if self._unasked == self._most_unasked and not self._asks(item):
            raise self._endless("yielded", self._unasked, "effects or notes since its last call")
        if kind is Ask:
            self._open_phase([item])
            return
        if kind in RESULTS:
            self._open_effects([item])
            return
        items = [item] if self._lone else item
        kinds = set(map(type, items))
        if kinds == {Ask}:
            self._open_phase(items)
        elif kinds and kinds <= RESULTS.keys():
            self._open_effects(items)
        else:
            got = ", ".join(type(entry).__name__ for entry in items) or "an empty list"
            raise self._failure(
                "yield an Ask, a RoleScore, an InterimScore, an effect "
                f"({', '.join(kind.__name__ for kind in RESULTS)}), or a list of Asks or of "
                f"effects; got {got}"
            )

    def _asks(self, item: Any) -> bool:
        """Whether the script yielded an Ask, or a list of them."""
        return type(item) is Ask or (type(item) is list and bool(item) and type(item[0]) is Ask)

    def _endless(self, verb: str, count: int, what: str) -> WorkflowError:
        """The error for a script that goes on where its limit is reached."""
        return self._failure(
            f"{type(self.workflow).__name__}.play() has {verb} {count:,} {what} and goes on: let "
            "its loop end, or set max_calls=N (--max-calls N) to allow more"
        )

    def _open_effects(self, effects: list[Effect]) -> None:
        self._unasked += 1
        for effect in effects:
            fault = effect_fault(effect)
            if type(effect) is Run and not self._may_run():
                fault = (
                    "the script yields Run, and the workflow does not say that it runs programs: "
                    "set `runs_programs = True`, so that users are told how they are confined"
                )
            if fault:
                raise self._failure(fault)
        if self._before is not None:
            check_effects(self.workflow.name, self._before, len(self._requested), effects)
        self._requested += effects
        self.effects = tuple(effects)

    def _may_run(self) -> bool:
        return self.workflow.runs_programs or self.workflow.task.runs_programs

    def _open_phase(self, asks: list[Ask]) -> None:
        if self.max_cycles is not None and self._over_budget(asks):
            self._script.close()
            self.outcome = Outcome(score=0.0)
            self.done = self.truncated = True
            return
        if len(self.turns) + len(asks) > self._most_calls:
            raise self._endless("made", len(self.turns), "calls")
        self._unasked = 0
        opened: list[Turn] = []
        known, counts, frames = self.workflow.agents, self._counts, self.workflow.frames
        call, phase, logged = len(self.turns), self.phases, len(self.log)
        for slot, ask in enumerate(asks):
            agent = ask.agent
            if agent not in known:
                raise self._failure(str(unknown("agent", agent, known)))
            if type(ask.messages) is not str and not is_chat(ask.messages):
                raise self._failure(
                    f"the prompt of {agent} must be a str or a list of messages with a role and a "
                    f"content, both str; got {ask.messages!r:.200}"
                )
            turn = Turn(ask, call + slot, slot, counts.get(agent, 0), phase, logged)
            if frames and (frame := frames.get(known[agent][0])):
                turn.messages = framed(turn.messages, frame)
            counts[agent] = turn.turn + 1
            opened.append(turn)
        if len(opened) > 1 and len({turn.agent for turn in opened}) < len(opened):
            raise self._failure("an agent may be asked only once in a phase")
        self.phases += 1
        self.turns += opened
        self.asks = tuple(opened)
        if self._before is not None:
            check_turns(self.workflow.name, self._before, opened)

    def _over_budget(self, asks: list[Ask]) -> bool:
        """Whether one of these agents has been asked `max_cycles` times already."""
        counts, most = self._counts, self.max_cycles
        return most is not None and any(counts.get(ask.agent, 0) >= most for ask in asks)

    def _failure(self, message: str, error: Exception | None = None) -> WorkflowError:
        """The error to raise, naming the script's line that raised `error` or that yielded last."""
        return script_failure(
            self.workflow, self.problem, self._script, message, error, self.transcript()
        )

    def transcript(self) -> list[dict[str, Any]]:
        """What was said so far: one plain dict per turn, open ones with `reply` None."""
        return [
            {
                "agent": turn.agent,
                "turn": turn.turn,
                "phase": turn.phase,
                "messages": turn.observe(),
                "reply": turn.said if turn.reply else self._buffer.get(turn.agent),
            }
            for turn in self.turns
        ]
