"""One run of a workflow's script, without I/O.

An episode *is* its log: the replies and effect results so far, in order. Forking, pickling and
replaying run the script again over the log; no effect is repeated.
"""

import os
import traceback
from collections.abc import Sequence
from types import GeneratorType
from typing import Any

from flowzoo.aliases import StateDict
from flowzoo.envs.episode.faults import (
    UngradedError,
    WorkflowError,
    check_note,
    check_results,
    effect_fault,
    foreign_reply,
    is_chat,
    outcome_fault,
    score_fault,
    tools_fault,
)
from flowzoo.envs.episode.rubric import with_rubric
from flowzoo.envs.episode.turn import (
    ReplayTrace,
    Turn,
    check_effects,
    check_turns,
    diverged_error,
    replay_trace,
)
from flowzoo.envs.script import (
    CHAT_ROLES,
    RESULTS,
    Ask,
    CountedReply,
    Effect,
    EffectResult,
    Grade,
    GradeResult,
    InterimScore,
    Judge,
    Outcome,
    Reply,
    ReplyCounts,
    RoleScore,
    Run,
    Script,
    UseTool,
)
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.tools import CallReading, read_calls
from flowzoo.envs.wording import frame_messages
from flowzoo.envs.workflow import MOST_CALLS, Workflow
from flowzoo.errors import UsageError, unknown
from flowzoo.reward.visible import strip_thinking

LogEntry = str | EffectResult  # a reply, or the result of an effect


class Episode:
    """A workflow script in progress.

    At any time exactly one of these holds: `asks` is not empty (replies are pending), `effects` is
    not empty (results are pending), or `done`.
    """

    def __init__(
        self, workflow: Workflow, problem: Problem, key: str = "", max_cycles: int | None = None
    ) -> None:
        """Start the script of `workflow` on `problem`.

        Args:
            workflow: the workflow with its task.
            problem: a problem of the task.
            key: name of the episode in records.
            max_cycles: most asks of an agent; see `WorkflowEnv`.
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
        """Set the reply of an open turn; the script resumes when its phase is complete.

        Raises:
            UsageError: `text` is not a str, or `agent` has no open turn.
            WorkflowError: the script failed.
        """
        if not isinstance(text, str):
            raise UsageError(
                f"the reply of {agent} must be a str, got {type(text).__name__}: "
                "pass the text the model generated"
            )
        if agent in self._buffer or all(turn.agent != agent for turn in self.asks):
            raise unknown("agent with an open turn", agent, [turn.agent for turn in self.waiting])
        self._buffer[agent] = text
        if len(self._buffer) == len(self.asks):
            self._commit(self._buffer)

    def resolve(self, results: Sequence[EffectResult]) -> None:
        """Set the results of all pending effects, in their order.

        Raises:
            UsageError: wrong number or type of results.
            UngradedError: one of them is unknown; the effects stay pending.
            WorkflowError: the script failed.
        """
        effects = self.effects
        if reason := check_results(effects, results):
            name, problem = self.workflow.name, self.problem.id
            message = f"{name}, problem {problem}: the verdict is unknown ({reason})"
            message += ", so the episode has no score"
            raise UngradedError(message, problem, self.transcript(), reason)
        for effect, result in zip(effects, results, strict=True):
            if isinstance(effect, Grade) and isinstance(result, GradeResult):
                if fault := score_fault(result.score):
                    grader = f"grade_batch of task {self.workflow.task.name!r}"
                    answer = f"the score of {effect.answer!r:.80}"
                    raise self._failure(f"{grader}: {answer} {fault}")
                if effect.of is not None:
                    self.role_scores[effect.of.call] = float(result.score)
        self.log.extend(results)
        self.effects = ()
        self._advance(results[0] if self._lone else list(results))

    def _commit(self, replies: dict[str, str]) -> None:
        values = []
        for turn in self.asks:
            text = replies[turn.agent]
            self.log.append(text)
            turn.said = str(text)
            counts = None
            if type(text) is CountedReply:
                turn.row = text.row
                counts = text.counts if self.workflow.counts_replies else None
            turn.reply = self._read(turn, turn.said, counts)
            values.append(turn.reply)
        self.asks = ()
        self._buffer = {}
        self._advance(values[0] if self._lone else values)

    def _read(self, turn: Turn, text: str, counts: ReplyCounts | None) -> Reply:
        visible = strip_thinking(text)
        content = visible if self.workflow.thoughts == "hide" else text
        calls, fault = CallReading()
        strict: object = visible
        if turn.tools:
            calls, fault = read_calls(visible, turn.tools, turn.max_tool_calls, turn.call)
        if calls or fault:
            strict = calls or None
        lenient = strict
        if turn.parse is not None and not (calls or fault):
            try:
                lenient = strict = turn.parse(visible)
                if strict is None and turn.lenient is not None:
                    lenient = turn.lenient(visible)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # also SystemExit
                message = f"the parser of {turn.agent} raised {error!r}"
                raise self._failure(message, error) from error
        return Reply(turn.call, turn.agent, content, strict, lenient, counts, calls, fault)

    # -- running the script -------------------------------------------------------------------

    def _restart(self, before: ReplayTrace | None) -> None:
        self.log: list[LogEntry] = []
        self.turns: list[Turn] = []  # every turn opened so far, in call order
        self.role_scores: dict[int, float] = {}
        self.forms: dict[int, float] = {}
        # Latest `InterimScore` of the script: the score if the episode ended now.
        self.interim_score: float | None = None
        self.interim_phase = 0  # number of opened phases when `interim_score` was set
        self.phases = 0
        self.asks: tuple[Turn, ...] = ()
        self.effects: tuple[Effect, ...] = ()
        self.outcome: Outcome | None = None
        self.done = False
        self.truncated = False
        self.settled: Any = None  # the rewards, once `episode_rewards` has computed them
        self._noted: set[int] = set()  # calls whose replies have a `RoleScore`
        self._buffer: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._lone = False
        self._before = before
        self.requested: list[Effect] = []  # so far; `log` has the results in the same order
        self._unasked = 0  # number of effects, role scores and interim scores since the last call
        self._most_calls = self.workflow.call_limit
        if self.max_cycles is not None and self.workflow.max_calls is None:
            most = self.max_cycles * len(self.workflow.agents)
            self._most_calls = max(self._most_calls, most)
        self._most_unasked = max(MOST_CALLS, self._most_calls)
        self._script: Script = self.workflow.script(self.problem)
        if self.workflow.episode_reward is not None and self.workflow.judged_criteria:
            self._script = with_rubric(self._script, self.workflow, self.turns)
        self._advance(None)

    def _advance(self, value: object) -> None:
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
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also SystemExit
            message = str(error) if isinstance(error, UsageError) else f"play() raised {error!r}"
            if isinstance(error, AttributeError) and isinstance(error.obj, (Ask, *RESULTS)):
                kind = type(error.obj).__name__
                message += f": only what `yield {kind}(...)` returns has that"
            elif isinstance(error, AttributeError) and isinstance(error.obj, GeneratorType):
                message += ": only what `yield from` returns has that"
            raise self._failure(message, error) from error
        else:
            self._open(item)

    def _note(self, item: RoleScore | InterimScore) -> None:
        check_note(item)
        if isinstance(item, InterimScore):
            self.interim_score, self.interim_phase = float(item.score), self.phases
            return
        of, value, form = item
        if fault := foreign_reply(item, self.turns):
            raise TypeError(fault)
        if of.call in self._noted:
            raise TypeError(f"a reply of {of.agent} has two role scores: yield one for a reply")
        self._noted.add(of.call)
        self.role_scores[of.call] = float(value)
        if form is not None:
            self.forms[of.call] = float(form)

    def _open(self, item: Any) -> None:
        self._lone = type(item) is not list
        items = [item] if self._lone else item
        kinds = set(map(type, items))
        if self._unasked == self._most_unasked and kinds != {Ask}:
            raise self._endless("yielded", self._unasked, "effects or notes since its last call")
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

    def _endless(self, verb: str, count: int, what: str) -> WorkflowError:
        return self._failure(
            f"{type(self.workflow).__name__}.play() has {verb} {count:,} {what} and did not end: "
            "let its loop end, or set max_calls=N (--max-calls N) to allow more"
        )

    def _open_effects(self, effects: list[Effect]) -> None:
        self._unasked += 1
        may_run = self.workflow.runs_programs or self.workflow.task.runs_programs
        for effect in effects:
            fault = effect_fault(effect) or foreign_reply(effect, self.turns)
            if type(effect) is Run and not may_run:
                fault = (
                    "the script yields Run, but the workflow does not declare that it runs "
                    "programs: set `runs_programs = True`, so that users see how they are confined"
                )
            if type(effect) is Judge and not self.workflow.needs_judge:
                fault = (
                    "the script yields Judge, but the workflow does not declare that it asks a "
                    "judge: set `asks_judge = True`, so that a run has a policy for it from the "
                    "start"
                )
            if fault:
                raise self._failure(fault)
        effects = [self._with_caller(effect) for effect in effects]
        if self._before is not None:
            check_effects(self.workflow.name, self._before, len(self.requested), effects)
        self.requested += effects
        self.effects = tuple(effects)

    def _with_caller(self, effect: Effect) -> Effect:
        name = self.workflow.name
        if isinstance(effect, Judge):
            return effect._replace(caller=f"{name}, {effect.of.agent}")
        if isinstance(effect, UseTool):
            turns = (turn for turn in self.turns if turn.reply is not None)
            agents = [turn.agent for turn in turns if effect.call in turn.reply.tool_calls]  # type: ignore[union-attr]
            return effect._replace(caller=", ".join([name, *agents[:1]]))
        return effect

    def _open_phase(self, asks: list[Ask]) -> None:
        counts, most = self._counts, self.max_cycles
        if most is not None and any(counts.get(ask.agent, 0) >= most for ask in asks):
            self._script.close()
            self.outcome = Outcome(score=0.0)
            self.done = self.truncated = True
            return
        if len(self.turns) + len(asks) > self._most_calls:
            raise self._endless("made", len(self.turns), "calls")
        self._unasked = 0
        opened: list[Turn] = []
        agents, frames = self.workflow.agents, self.workflow.frames
        call, phase, logged = len(self.turns), self.phases, len(self.log)
        for slot, ask in enumerate(asks):
            agent = ask.agent
            if agent not in agents:
                raise self._failure(str(unknown("agent", agent, agents)))
            if type(ask.messages) is not str and not is_chat(ask.messages):
                raise self._failure(
                    f"the prompt of {agent} must be a str or a list of messages with a role "
                    f"({', '.join(sorted(CHAT_ROLES))}) and a str as content; got "
                    f"{ask.messages!r:.200}"
                )
            if ask.tools and (
                fault := tools_fault(ask, self.workflow.tool_roles, agents[agent][0])
            ):
                raise self._failure(fault)
            turn = Turn(ask, call + slot, slot, counts.get(agent, 0), phase, logged)
            if frames and (frame := frames.get(agents[agent][0])):
                turn.messages = frame_messages(turn.messages, frame, turn.turn)
            counts[agent] = turn.turn + 1
            opened.append(turn)
        if len(opened) > 1 and len({turn.agent for turn in opened}) < len(opened):
            raise self._failure("an agent may be asked only once in a phase")
        self.phases += 1
        self.turns += opened
        self.asks = tuple(opened)
        if self._before is not None:
            check_turns(self.workflow.name, self._before, opened)

    def _failure(self, message: str, error: BaseException | None = None) -> WorkflowError:
        # Names the line of `play` that raised `error` or yielded last, not of `Workflow.script`,
        # which grades what it has returned; of a script that has ended, where `play` begins.
        code = type(self.workflow).play.__code__
        home, location = code.co_filename, (code.co_filename, code.co_firstlineno)
        generator: Any = self._script
        while getattr(generator, "gi_frame", None) is not None:
            frame, generator = generator.gi_frame, generator.gi_yieldfrom
            if frame.f_code is not Workflow.script.__code__:
                location = frame.f_code.co_filename, frame.f_lineno
        if error is not None:
            frames = traceback.extract_tb(error.__traceback__)
            lines = [(frame.filename, frame.lineno) for frame in frames if frame.filename == home]
            location = lines[-1] if lines else location
        where = f" ({os.path.basename(location[0])}, line {location[1]})"
        return WorkflowError(
            f"{self.workflow.name}{where}, problem {self.problem.id}: {message}",
            self.problem.id,
            self.transcript(),
        )

    # -- replaying -----------------------------------------------------------------------------

    def fork(self, key: str | None = None, log: Sequence[LogEntry] | None = None) -> "Episode":
        """Return an independent episode in the same state, by replaying the log.

        Args:
            key: name of the new episode; default the same.
            log: a log with other results, to verify that they lead to the same asks.

        Raises:
            DivergedError: the script's asks or effects differ.
        """
        state = self._state(digests=False)
        state["key"] = self.key if key is None else key
        state["log"] = self.log if log is None else log
        twin = Episode.__new__(Episode)
        twin.__setstate__(state)
        return twin

    def __getstate__(self) -> StateDict:
        # A replay needs only the log and a digest of every prompt.
        return self._state(digests=True)

    def _state(self, digests: bool) -> StateDict:
        return {
            "workflow": self.workflow,
            "problem": self.problem,
            "key": self.key,
            "max_cycles": self.max_cycles,
            "log": self.log,
            "buffer": self._buffer,
            "asked": replay_trace(self.turns, self.requested, self.done, digests),
        }

    def __setstate__(self, state: StateDict) -> None:
        self.workflow, self.problem = state["workflow"], state["problem"]
        self.key, self.max_cycles = state["key"], state["max_cycles"]
        log, before, name = state["log"], state["asked"], self.workflow.name
        self._restart(before)
        position = 0
        while position < len(log):
            count = len(self.asks) or len(self.effects)
            entries = log[position : position + count]
            spoken = all(isinstance(entry, str) for entry in entries)
            if not count or len(entries) < count or spoken != bool(self.asks):
                raise diverged_error(name, "another path was taken")
            if self.asks:
                self._commit(dict(zip((t.agent for t in self.asks), entries, strict=True)))
            else:
                self.resolve(entries)
            position += count
        sizes = len(self.turns), len(self.requested), self.done
        if sizes != (len(before.turns), len(before.questions), before.done):
            raise diverged_error(name, "another path was taken")
        self._buffer = dict(state["buffer"])
        self._before = None

    # -- reading -------------------------------------------------------------------------------

    def transcript(self) -> list[dict[str, Any]]:
        """The episode so far: one plain dict per turn; an open turn has `reply` None."""
        return [
            {
                "agent": turn.agent,
                "turn": turn.turn,
                "phase": turn.phase,
                "messages": turn.observe(),
                "reply": turn.said if turn.reply else self._buffer.get(turn.agent),
                **({"tools": [tool.schema() for tool in turn.tools]} if turn.tools else {}),
            }
            for turn in self.turns
        ]

    def finished(self) -> Outcome:
        """The outcome.

        Raises:
            UsageError: the script has not returned yet.
        """
        if self.outcome is None:
            raise UsageError("the episode is not finished: reply and resolve until `done`")
        return self.outcome
