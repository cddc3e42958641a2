"""One run of a workflow's script, without I/O.

An episode *is* its log: the replies and effect results so far, in order. Whoever drives it (the
AEC adapter, the rollout engine, a test) looks at `asks` and `effects`, does the work, and calls
`reply` or `resolve`. Forking, pickling and replaying all run the script again over the log; no
effect is ever repeated, and a script that asks something else the second time raises
`DivergedError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowzoo.envs.episode.faults import check_results, score_fault, ungraded
from flowzoo.envs.episode.replay import ReplayTrace, diverged, replay_trace
from flowzoo.envs.episode.stepping import LogEntry, ScriptRun
from flowzoo.envs.episode.turns import Turn
from flowzoo.envs.script import Effect, EffectResult, Grade, Outcome, Reply
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.workflow import Workflow
from flowzoo.errors import UsageError, unknown
from flowzoo.frozen import quick_tuple
from flowzoo.reward.visible import strip_thinking


class Episode(ScriptRun):
    """A workflow script in progress.

    Exactly one of these holds at any time: `asks` is not empty (replies are awaited), `effects` is
    not empty (results are awaited), or `done`.
    """

    __slots__ = ("key",)

    def __init__(
        self, workflow: Workflow, problem: Problem, key: str = "", max_cycles: int | None = None
    ) -> None:
        """Start the script of `workflow` on `problem`.

        Args:
            workflow: what is played.
            problem: on what.
            key: names the episode in records.
            max_cycles: most asks of any agent; see `WorkflowEnv`.
        """
        self.workflow = workflow
        self.problem = problem
        self.key = key
        self.max_cycles = max_cycles
        self._restart(None)

    # -- driving -------------------------------------------------------------------------------

    @property
    def waiting(self) -> tuple[Turn, ...]:
        """The open turns that have no reply yet, in slot order."""
        if not self._buffer:
            return self.asks
        return tuple(turn for turn in self.asks if turn.agent not in self._buffer)

    @property
    def pending_effects(self) -> list[tuple[Problem, Effect]]:
        """The effects that wait for results, with their problem."""
        return [(self.problem, effect) for effect in self.effects]

    def reply(self, agent: str, text: str) -> None:
        """Give the reply of one open turn; the script resumes after the last of its phase.

        Raises:
            UsageError: `text` is not a str, or `agent` has no open turn.
            WorkflowError: the script failed.
        """
        if not isinstance(text, str):
            raise UsageError(
                f"the reply of {agent} must be a str, got {type(text).__name__}: "
                "pass the text the model generated"
            )
        asks = self.asks
        if len(asks) == 1 and asks[0].agent == agent:
            self._commit({agent: text})
            return
        buffer = self._buffer
        for turn in asks:
            if turn.agent == agent and agent not in buffer:
                break
        else:
            raise unknown("agent with an open turn", agent, [turn.agent for turn in self.waiting])
        buffer[agent] = text
        if len(buffer) == len(asks):
            self._commit(buffer)

    def resolve(self, results: Sequence[EffectResult]) -> None:
        """Give the results of all pending effects, in their order.

        Raises:
            UsageError: wrong number or type of results.
            UngradedError: the sandbox failed under one of them; the effects stay pending.
            WorkflowError: the script failed.
        """
        effects = self.effects
        if not check_results(effects, results):
            raise ungraded(self.workflow, self.problem, self.transcript())
        for effect, result in zip(effects, results, strict=True):
            if type(effect) is Grade:
                score: Any = result[0]
                if not (type(score) is float and 0.0 <= score <= 1.0):  # never of NaN
                    score = self._checked(effect, score)
                if effect.of is not None:
                    self.role_scores[effect.of.call] = score
        self.log.extend(results)
        self.effects = ()
        self._advance(results[0] if self._lone else list(results))

    def _checked(self, grade: Grade, score: Any) -> float:
        """A score of the task's grader, refused where it arises if it is none."""
        fault = score_fault(score)
        if fault:
            of = f"grade_batch of task {self.workflow.task.name!r} gave {grade.answer!r:.80}"
            raise self._failure(f"{of} a score that is {fault}")
        return float(score)

    def _commit(self, replies: dict[str, str]) -> None:
        values = []
        for turn in self.asks:
            text = replies[turn.agent]
            self.log.append(text)
            turn.said = text
            turn.reply = self._read(turn, text)
            values.append(turn.reply)
        self.asks = ()
        self._buffer = {}
        self._advance(values[0] if self._lone else values)

    def _read(self, turn: Turn, text: str) -> Reply:
        heard = strip_thinking(text)
        told = heard if self.workflow.thoughts == "hide" else text
        if turn.parse is None:
            return quick_tuple(Reply, (turn.call, turn.agent, told, heard, heard))
        try:
            strict = turn.parse(heard)
            lenient = strict if turn.lenient is None or strict is not None else turn.lenient(heard)
        except Exception as error:
            raise self._failure(f"the parser of {turn.agent} raised {error!r}", error) from error
        return quick_tuple(Reply, (turn.call, turn.agent, told, strict, lenient))

    # -- replaying -----------------------------------------------------------------------------

    def fork(self, key: str | None = None) -> Episode:
        """An independent episode in the same state, made by replaying the log."""
        twin = Episode.__new__(Episode)
        twin.workflow, twin.problem, twin.max_cycles = self.workflow, self.problem, self.max_cycles
        twin.key = self.key if key is None else key
        twin._replay(self.log, self._buffer, replay_trace(self.turns, self._requested, self.done))
        return twin

    def _replay(self, log: Sequence[LogEntry], buffer: dict[str, str], before: ReplayTrace) -> None:
        name = self.workflow.name
        self._restart(before)
        position = 0
        while position < len(log):
            count = len(self.asks) or len(self.effects)
            entries = log[position : position + count]
            spoken = all(isinstance(entry, str) for entry in entries)
            if not count or len(entries) < count or spoken != bool(self.asks):
                raise diverged(name, "another path was taken")
            if self.asks:
                self._commit(dict(zip((t.agent for t in self.asks), entries, strict=True)))  # type: ignore[arg-type]
            else:
                self.resolve(entries)  # type: ignore[arg-type]
            position += count
        sizes = len(self.turns), len(self._requested), self.done
        if sizes != (len(before.turns), len(before.questions), before.done):
            raise diverged(name, "another path was taken")
        self._buffer = dict(buffer)
        self._before = None

    def __getstate__(self) -> dict[str, Any]:
        """The log and a digest of every prompt: all that a replay needs."""
        return {
            "workflow": self.workflow,
            "problem": self.problem,
            "key": self.key,
            "max_cycles": self.max_cycles,
            "log": self.log,
            "buffer": self._buffer,
            "asked": replay_trace(self.turns, self._requested, self.done, digests=True),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Replay the log, checking every prompt against its digest."""
        self.workflow, self.problem = state["workflow"], state["problem"]
        self.key, self.max_cycles = state["key"], state["max_cycles"]
        self._replay(state["log"], state["buffer"], state["asked"])

    # -- reading -------------------------------------------------------------------------------

    def finished(self) -> Outcome:
        """The outcome.

        Raises:
            UsageError: the script has not returned yet.
        """
        if self.outcome is None:
            raise UsageError("the episode is not finished: reply and resolve until `done`")
        return self.outcome
