"""Base class of workflows: stateless, with a pure generator `play`.

A workflow has a task, settings and prompts, but no state of an episode: one instance serves
thousands of episodes at once.
"""

import copy
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from numbers import Real
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from flowzoo.envs.script import (
    JUDGE,
    Grade,
    Message,
    Outcome,
    Payoffs,
    Reply,
    Responder,
    Script,
)
from flowzoo.envs.settings import check_number, check_whole, plain_integers, plain_setting
from flowzoo.envs.tasks.task import KINDS, Problem, Task
from flowzoo.envs.wording import (
    AGAIN,
    INSTRUCTION,
    PromptFrame,
    Texts,
    plain_examples,
    plain_texts,
    read_wording,
    replace_texts,
)
from flowzoo.errors import UsageError, check_choice, unknown
from flowzoo.functions import FunctionSetting
from flowzoo.reward.code.score import code_sandbox
from flowzoo.seeding import key_digest, key_rng

Credit = Literal["team", "local", "mix", "rubric"]
Thoughts = Literal["hide", "show"]
CreditRule = Callable[[Mapping[str, float]], float]
"""A custom credit rule: function from the reward parts of a call to its reward."""
AnswerReader = Callable[[str], str | None]
Roles = Mapping[str, int | tuple[str, ...]]
"""Number of agents by role ("voter": 2 gives voter_0 and voter_1), or their names."""


LATER = {"later": True}
"""Metadata of a setting that digests leave out at its default, to keep those from before it."""
MOST_AGENTS = 1000
"""Most agents of a role."""
MOST_CALLS = 1000
"""Most calls of an episode if `max_calls` is not given."""
CALLS_PER_AGENT = 10
"""Most calls per agent, for workflows with many agents."""


def agents_of(role: str, agents: int | tuple[str, ...]) -> tuple[str, ...]:
    """The names of a role's agents."""
    if isinstance(agents, tuple):
        return agents
    if not (isinstance(agents, int) and 1 <= agents <= MOST_AGENTS):
        raise UsageError(f"role {role!r}: expected 1 to {MOST_AGENTS} agents, got {agents!r}.")
    return tuple(f"{role}_{n}" for n in range(agents))


def read_weights(weights: object) -> tuple[Any, Any]:
    """The two weights of a local reward, from a tuple or the text FORM+ROLE."""
    try:
        pair = tuple(map(float, weights.split("+"))) if isinstance(weights, str) else weights
    except ValueError:
        pair = None
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise UsageError(
            "local_weights: expected a tuple of two numbers, or FORM+ROLE as in 0.2+0.8, got "
            f"{weights!r}."
        )
    return pair


@dataclass(frozen=True, slots=True)
class FinishedEpisode:
    """The argument of a custom episode reward."""

    problem: Problem
    answer: str | None
    """The workflow's answer; None without one."""
    score: float
    """Score of the task's grader or of the workflow."""
    facts: Mapping[str, Any]
    """Facts of the outcome; see the workflow's page."""
    replies: tuple[tuple[str, str], ...]
    """Agent and text of every reply, in the order of the calls."""


class RubricCall(NamedTuple):
    """A call of a finished episode, as a rubric judges it."""

    role: str
    readable: bool
    is_right: bool
    """True if its role score is 1."""
    team_is_right: bool
    """True if its share of the team's outcome is 1."""


JudgeFunction = Callable[[list[Message]], str]
"""A judge without a policy: its reply to a chat of `flowzoo.envs.readers.judgments`."""
EpisodeReward = Callable[[FinishedEpisode], float]
"""A custom reward: function from a finished episode to its score, any finite number.

For an episode with an abstaining reply it is called again with `answer` None and `score` 0, for the
reward of that reply.
"""


@dataclass
class ScriptedResponder:
    """Scripted player of all roles of one episode; can be pickled at any point."""

    workflow: "Workflow"
    problem: Problem
    skill: float
    """Probability that a reply is right."""
    seed: int
    count: int = 0
    """Number of replies so far, part of the key of the next one."""

    def __call__(self, role: str, messages: list[Message]) -> str:
        """The reply of `role` to `messages`."""
        rng = key_rng("responder", self.seed, self.problem.id, role, self.count)
        self.count += 1
        right = rng.random() < self.skill
        return self.workflow.expert(role, messages, self.problem, rng, right)


@dataclass(frozen=True)
class Workflow:
    """A workflow script with its task and settings.

    Raises:
        UsageError: an unknown preset or credit, a task whose answer kind the workflow does not
            understand, or a number out of range.
    """

    name: ClassVar[str]
    """Versioned name such as `voting_v0`: any change that could affect learning results increments
    N."""
    roles: ClassVar[Mapping[str, int]]
    """Number of agents by role; agents are numbered, as in voter_0, voter_1."""
    presets: ClassVar[tuple[str, ...]] = ("strict",)
    kinds: ClassVar[tuple[str, ...]] = ()
    """Supported answer kinds of tasks; empty means any."""
    own_kinds: ClassVar[bool] = False
    """True if custom kinds, which no bundled task has, are also supported: the script only parses,
    grades and compares answers."""
    runs_programs: ClassVar[bool] = False
    """True if the script runs programs (effect `Run`) on any task."""
    asks_judge: ClassVar[bool] = False
    """True if the script asks a judge (effect `Judge`)."""
    own_instruction: ClassVar[bool] = False
    """True if `prompts` have the form of the answer, and the task's instruction is not shown."""
    tool_roles: ClassVar[tuple[str, ...]] = ()
    """Roles whose asks may have tools."""
    default_task: ClassVar[str] = "math"
    """Default task of `env()`."""
    task_class: ClassVar[type[Task]] = Task
    """Class of the tasks whose methods the script calls."""
    score_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    """The lowest and highest `score` of an `Outcome` of play(), scaled to 0 to 1 for the episode.
    Grades of a task are already 0 to 1."""
    replayable: ClassVar[bool] = True
    """False if an episode cannot be continued from a copy."""
    open_limit: ClassVar[int | None] = None
    """Most concurrent episodes of rollouts; None: no limit."""
    pays_agents: ClassVar[bool] = False
    """True if an external environment pays every agent separately (`Payoffs`)."""
    counts_replies: ClassVar[bool] = False
    """True if the script needs the token counts of replies."""
    simultaneous: ClassVar[bool] = False
    """True if every agent acts in every phase, as a parallel environment requires."""
    prompts: ClassVar[Mapping[str, str]] = {}
    """Every prompt text of the workflow, by purpose, or `purpose/kind` for tasks of one kind."""
    full_prompts: ClassVar[Mapping[str, str]] = {}
    """Replacements of `prompts` with `texts="full"`, for language models that do not know the
    workflow; the pocket models were trained on the short ones."""
    prompts_version: ClassVar[str] = "1"

    task: Task
    """Source of problems and grader of answers."""
    preset: str = "strict"
    """`strict`: unreadable replies abstain. `paper`: what arXiv 2605.24202 describes, with lenient
    readers. `published`: the same with the readers of its public code; each is strict and lenient
    in one (`flowzoo.envs.readers.published`)."""
    credit: Credit | CreditRule = "team"
    """Reward of a call: the team outcome, its role's own reward, alpha * team + local, the
    workflow's `rubric`, or a custom rule: a function or its name, module:function or
    path/to/file.py:function."""
    alpha: float = 1.0
    """Weight of the team outcome under `credit="mix"`."""
    local_weights: tuple[float, float] = (0.2, 0.8)
    """Local reward: weight of a readable reply, weight of its role score; as an option FORM+ROLE,
    e.g. 0.2+0.8."""
    format_penalty: float = 0.0
    """Subtracted from a call whose reply the strict parser could not read."""
    thoughts: Thoughts = "hide"
    """Visibility of thoughts (text in `<think>` tags) to team-mates. They are never graded."""
    episode_reward: EpisodeReward | None = field(default=None, metadata=LATER)
    """Scores finished episodes in place of the task's grader; an episode truncated by `max_cycles`
    still has 0. Agents still see the grader's verdicts."""
    judge: JudgeFunction | None = field(default=None, kw_only=True)
    """Replies to the chats of judges if there is no policy map, as in an environment that is
    stepped by hand: a function of the chat."""
    max_calls: int | None = field(default=None, kw_only=True)
    """Most calls of an episode; a script that exceeds it raises a WorkflowError. So do as many
    effects and notes (at least 1,000) without a call in between. None: see `call_limit`."""

    texts: Texts | Mapping[str, str] | str = field(default=(), kw_only=True, metadata=LATER)
    """Replacements of `prompts` by name; `instruction` is the task's. Or `full` for `full_prompts`,
    `short`, or the path of a TOML file of texts and system messages (see
    `flowzoo.envs.wording`)."""
    system: Texts | Mapping[str, str] = field(default=(), kw_only=True, metadata=LATER)
    """System messages by role."""
    examples: Any = field(default=(), kw_only=True, metadata=LATER)
    """Example chats by role, shown before the role's chat, and by `ROLE/again` before its later
    turns; `env()` and `make_workflow()` also accept a number of worked examples. See
    `flowzoo.envs.episode.examples`."""

    def __post_init__(self) -> None:
        plain_integers(self)
        for name in ("kinds", "presets", "tool_roles"):
            if isinstance(value := getattr(self, name), str):
                raise UsageError(
                    f"`{name}` of {self.name} must be a tuple of names, got {value!r}: write "
                    f"({value!r},)."
                )
        self._take_wording()
        self._check_range()
        if self.preset not in self.presets:
            raise unknown(f"preset of {self.name}", self.preset, self.presets)
        self._check_functions()
        check_choice("thoughts", self.thoughts, Thoughts)
        self.check_kind(self.task)
        if self.task_class is not Task and not isinstance(self.task, self.task_class):
            raise UsageError(
                f"{self.name} needs a task derived from {self.task_class.__name__}, got "
                f"{type(self.task).__name__}"
            )
        programs = self.runs_programs or self.task.runs_programs
        if self.task.sandbox != "auto" and not programs:
            raise UsageError(
                f"{self.name} on task {self.task.name!r} runs no programs: leave out "
                f"sandbox={self.task.sandbox!r}."
            )
        weights = read_weights(self.local_weights)
        object.__setattr__(self, "local_weights", weights)
        names = ("alpha", "format_penalty", "local_weights", "local_weights")
        for name, value in zip(names, (self.alpha, self.format_penalty, *weights), strict=True):
            check_number(name, value, 0)
        if self.max_calls is not None:
            check_whole("max_calls", self.max_calls, 1)

    def _take_wording(self) -> None:
        texts, system = self.texts, self.system
        if texts in ("short", "full"):
            texts = self.full_prompts if texts == "full" else ()
        if isinstance(texts, str):
            texts, of_file = read_wording(texts)
            system = {**dict(of_file), **dict(plain_texts("system", system))}
        texts, system = plain_texts("texts", texts), plain_texts("system", system)
        examples = plain_examples(self.examples)
        for name, value in (("texts", texts), ("system", system), ("examples", examples)):
            object.__setattr__(self, name, value)
        for name in (*dict(system), *(name.removesuffix(AGAIN) for name, _ in examples)):
            if name not in self.role_counts():
                raise unknown("role of a system message or example", name, self.role_counts())
        if not texts:
            return
        defaults = {**type(self).prompts, INSTRUCTION: self.task.instruction}
        prompts = replace_texts("text", defaults, texts)
        instruction = prompts.pop(INSTRUCTION)
        object.__setattr__(self, "prompts", prompts)
        if instruction == self.task.instruction:
            return
        if self.own_instruction:
            raise UsageError(
                f"{self.name} does not show the task's instruction: replace its own texts, "
                f"{', '.join(sorted(type(self).prompts))}."
            )
        if not self.task.instruction:
            raise UsageError(f"task {self.task.name!r} has no single instruction to replace.")
        task = copy.copy(self.task)
        object.__setattr__(task, "instruction", instruction)
        object.__setattr__(self, "task", task)

    @cached_property
    def frames(self) -> Mapping[str, PromptFrame]:
        """System message and worked examples by role, for roles that have any."""
        system = dict(plain_texts("system", self.system))
        chats: dict[str, tuple[Message, ...]] = {
            name: tuple({"role": sender, "content": content} for sender, content in chat)
            for name, chat in self.examples
        }
        return {
            role: PromptFrame(
                system.get(role, ""), chats.get(role, ()), chats.get(role + AGAIN, ())
            )
            for role in {*system, *(name.removesuffix(AGAIN) for name in chats)}
        }

    def _check_functions(self) -> None:
        credit, reward = self.credit, self.episode_reward
        if isinstance(credit, str) and ":" in credit:
            object.__setattr__(self, "credit", FunctionSetting("credit", credit))
        elif not callable(credit) and credit not in get_args(Credit):
            further = "name your own rule as module:function or path/to/file.py:function"
            raise unknown("credit", credit, get_args(Credit), further)
        if credit == "rubric":
            self.rubric(())
        if reward is not None and not callable(reward):
            raise UsageError(
                f"episode_reward: expected a function, got {reward!r:.60}; `flowzoo train` takes "
                "the name of one as --reward"
            )
        for criterion in self.judged_criteria:
            if criterion.role and criterion.role not in self.role_counts():
                named = f"role of criterion {criterion.name!r}"
                raise unknown(named, criterion.role, self.role_counts())
        if callable(self.judge) and not self.needs_judge:
            raise UsageError(f"{self.name} does not use a judge: leave out `judge`")
        if self.judge is not None and not callable(self.judge):
            raise UsageError(
                f"judge: expected a function from a chat to a reply, got {self.judge!r:.60}; in "
                "commands a judge is a policy: --policy judge=POLICY"
            )
        if self.needs_judge and JUDGE in self.role_counts():
            raise UsageError(
                f"{self.name} has a role named {JUDGE!r}, which is the name of the policy that "
                "answers Judge: rename the role"
            )

    @property
    def needs_judge(self) -> bool:
        """True if the script or criteria of the reward ask a judge."""
        return self.asks_judge or bool(self.judged_criteria)

    @property
    def judged_criteria(self) -> Sequence[Any]:
        """Criteria of the reward that a judge scores; see `flowzoo.envs.episode.rubric`."""
        return getattr(self.episode_reward, "judged", ())

    @property
    def functions(self) -> Mapping[str, str]:
        """Digest of the file by setting and name of every function that was given by name.

        Given texts, system messages and examples have a digest too.
        """
        rule = self.credit
        rules = {f"credit={rule.name}": rule.digest} if isinstance(rule, FunctionSetting) else {}
        return {**rules, "prompts": self.prompts_id} if self.texts or self.frames else rules

    @classmethod
    def check_kind(cls, task: Task | type[Task]) -> None:
        """Raise `UsageError` unless the script supports the answers of a task or its class."""
        if cls.takes(task.kind):
            return
        from flowzoo.envs.tasks import tasks_of

        fault = (
            f"{cls.name} does not support task {task.name!r} of kind {task.kind!r}; it supports "
            f"tasks of kind {', '.join(cls.kinds)}"
        )
        if task.kind not in KINDS:
            task_class = task if isinstance(task, type) else type(task)
            raise UsageError(
                f"{fault}. Tasks of custom kinds work with single_v0, voting_v0 and workflows "
                f"whose `kinds` are empty or include it; or set kind = {cls.kinds[0]!r} in "
                f"{task_class.__name__} if its answers are of that kind."
            )
        raise UsageError(f"{fault}: {', '.join(tasks_of(cls.kinds))}.")

    def _check_range(self) -> None:
        try:
            low, high = self.score_range
            is_range = -math.inf < low < high < math.inf
        except (TypeError, ValueError):
            is_range = False
        if not is_range:
            raise UsageError(
                f"{self.name}: score_range must be two finite numbers, the lowest score and the "
                f"highest, got {self.score_range!r}."
            )

    def _scale(self, outcome: Outcome) -> Outcome:
        low, high = self.score_range
        score = outcome.score
        if not isinstance(score, Real):
            raise UsageError(
                "the score of the Outcome of play() must be a number, got "
                f"{type(score).__name__} {score!r:.60}"
            )
        if not low <= float(score) <= high:
            raise UsageError(
                f"the score of the Outcome of play() must be from {low:g} to {high:g}, got "
                f"{score!r}: declare another range as score_range = (lowest, highest) in the "
                "workflow's class"
            )
        return outcome._replace(score=(float(score) - low) / (high - low))

    def _pay(self, outcome: Outcome, payoffs: object) -> Outcome:
        if not isinstance(payoffs, Payoffs):
            raise UsageError(f"payoffs must be Payoffs({{agent: pay}}), got {payoffs!r:.60}")
        returns = payoffs.returns
        if returns.keys() != self.agents.keys():
            raise UsageError(
                f"the Payoffs of an Outcome must name every agent ({', '.join(self.agents)}), got "
                f"{', '.join(map(str, returns)) or 'none'}"
            )
        for agent, pay in returns.items():
            if isinstance(pay, bool) or not isinstance(pay, Real) or not math.isfinite(pay):
                raise UsageError(f"the pay of {agent} must be a finite number, got {pay!r:.60}")
        if outcome.score is not None:
            return outcome
        return outcome._replace(score=sum(map(float, returns.values())) / len(returns))

    @classmethod
    def takes(cls, kind: str) -> bool:
        """True if the script supports answers of `kind`."""
        return not cls.kinds or kind in cls.kinds or (cls.own_kinds and kind not in KINDS)

    def play(self, problem: Problem) -> Script:
        """The script: yield asks and effects, receive replies and results, return an `Outcome`.

        It must be pure: the same replies and results lead to the same asks, regardless of the clock
        and other episodes. `problem.rng()` is the only randomness.
        """
        raise NotImplementedError(f"{type(self).__name__} must define play()")

    def expert(
        self, role: str, messages: list[Message], problem: Problem, rng: random.Random, right: bool
    ) -> str:
        """The reply of a scripted expert in `role`, right or wrong.

        The default solves the problem, for roles that answer it themselves.
        """
        return self.task.solve(problem, rng, right)

    def example(
        self, role: str, messages: list[Message], problem: Problem, rng: random.Random
    ) -> str:
        """The reply of a worked example in `role`; default: the expert's right reply."""
        return self.expert(role, messages, problem, rng, True)

    def wording(self, purpose: str) -> str:
        """The prompt text for `purpose`, specific to the task's kind if there is one."""
        return self.prompts.get(f"{purpose}/{self.task.kind}", self.prompts[purpose])

    def samples(self) -> tuple[str, ...]:
        """Short plausible replies of all roles, for random play."""
        return self.task.samples()

    def world(self, replies: Sequence[Reply]) -> str | None:
        """The team's answer so far, to draw a task's world, or None."""
        return None

    def role_counts(self) -> Roles:
        """Agents by role, if they depend on the settings."""
        return self.roles

    def rubric(self, calls: Sequence[RubricCall]) -> list[float]:
        """Reward of every call of an episode under `credit="rubric"`, the reward part `local`.

        Raises:
            UsageError: the workflow has no rubric.
        """
        raise UsageError(f"{self.name} has no rubric: expected credit team, local or mix.")

    def trajectory(self, agent: str) -> str:
        """Name of the trajectory of an agent's calls in the published code of arXiv:2605.24202.

        Its advantages compare calls with the same name, in all turns: the role's, but for agents
        that are numbered there.
        """
        return self.agents[agent][0]

    @property
    def follows_paper(self) -> bool:
        """True if episodes take the course of arXiv 2605.24202."""
        return self.preset in ("paper", "published")

    @property
    def answer_readers(self) -> tuple[AnswerReader, AnswerReader]:
        """Readers of a solver's reply for an `Ask`, strict and lenient."""
        task = self.task
        if self.preset == "published":
            return task.answer_published, task.answer_published
        return task.answer, task.answer_lenient

    def read(self, reply: Reply) -> Any:
        """The value of a reply: strict, or lenient under `preset="paper"`."""
        return reply.lenient if self.preset == "paper" else reply.strict

    @cached_property
    def agents(self) -> Mapping[str, tuple[str, int]]:
        """Role and number within the role by agent, in the order of `possible_agents`."""
        return {
            agent: (role, number)
            for role, agents in self.role_counts().items()
            for number, agent in enumerate(agents_of(role, agents))
        }

    @cached_property
    def call_limit(self) -> int:
        """`max_calls`, or its default: the larger of 1,000 and ten per agent."""
        return self.max_calls or max(MOST_CALLS, CALLS_PER_AGENT * len(self.agents))

    def grading(self) -> Mapping[str, Any]:
        """Settings of graders and sandboxes, as plain values for a run's record.

        Raises:
            UsageError: this machine lacks a requirement.
        """
        grading = self.task.grading()
        if not self.runs_programs or "sandbox" in grading:
            return grading
        return {**grading, "sandbox": code_sandbox(self.task.sandbox).describe()}

    @cached_property
    def prompts_id(self) -> str:
        """Version and hash of the prompt texts and the task's instruction.

        It is written into every call's record.
        """
        texts = [part for item in sorted(self.prompts.items()) for part in item]
        framed = [repr(self.system), repr(self.examples)] if self.frames else []
        texts += [self.task.instruction, *framed]
        return f"{self.name}@{self.prompts_version}:{key_digest(*texts).hex()[:8]}"

    @cached_property
    def spec(self) -> Mapping[str, Any]:
        """The settings as plain values, for run records and state hashes."""
        # Neither a limit nor a judge changes the prompts of an episode that ends.
        plain = {
            setting.name: plain_setting(value)
            for setting in fields(self)
            if setting.name not in ("task", "max_calls", "judge")
            for value in [getattr(self, setting.name)]
            if not (setting.metadata == LATER and value == setting.default)
        }
        return {"workflow": self.name, "task": self.task.name, **plain}

    @cached_property
    def spec_digest(self) -> bytes:
        """16 bytes that identify the settings."""
        return key_digest(*(str(part) for item in sorted(self.spec.items()) for part in item))

    def responder(self, problem: Problem, skill: float = 1.0, seed: int = 0) -> Responder:
        """Make a scripted player for one episode; each reply is right with probability `skill`.

        Raises:
            UsageError: `skill` is outside [0, 1].
        """
        if not 0 <= skill <= 1:
            raise UsageError(f"`skill` must be in [0, 1], got {skill}")
        return ScriptedResponder(self, problem, skill, seed)

    def script(self, problem: Problem) -> Script:
        """Run `play`, then grade its answer if it returned no score.

        Raises:
            UsageError: `play` is not a generator, did not return an `Outcome`, or returned an
                invalid score.
        """
        playing = self.play(problem)
        if not hasattr(playing, "send"):
            raise UsageError(
                f"play() must be a generator that asks with `yield`, got {type(playing).__name__}"
            )
        outcome = yield from playing
        if not isinstance(outcome, Outcome):
            raise UsageError(
                f"play() must return an Outcome, got {type(outcome).__name__}; "
                "end it with `return Outcome(answer=...)`"
            )
        if outcome.payoffs is not None:
            outcome = self._pay(outcome, outcome.payoffs)
        if outcome.score is not None:
            return self._scale(outcome)
        graded = yield Grade(outcome.answer)
        return Outcome(outcome.answer, graded.score, outcome.facts)
