"""# Any AEC environment

Any PettingZoo AEC environment with text observations and actions, as a workflow: its agents are
asked when they are selected, and the environment's rewards are theirs.

| | |
|---|---|
| Creation | `make_aec_workflow("package.module:function", **options)`; `flowzoo train --env` |
| Agents | agents of the environment, except scripted ones |
| Observation | the prompt from `describe`, or a text observation itself |
| Action | the action that `parse` reads, or the reply itself |
| Reward | `credit="local"`: the agent's own return; `"team"`: the score; `"mix"`: both |
| End | when the environment has no agents left, or after `max_steps` actions |

A problem is a seed: `reset(seed=...)` starts all episodes of one problem identically, and the
splits share no seeds. Every episode has a fresh environment, and a fork replays the replies in
another one: the environment must be deterministic given the seed and the actions.

## Arguments
| name | default | meaning |
|---|---|---|
| `credit` | `"local"` | reward of a call: see above |
| `illegal` | `"random"` | after an unreadable reply or an illegal action, a random legal action is played (seeded by problem, agent and turn); `"end"`: the episode ends, and the agent's return is the lowest of `score_range` |
| `format_penalty` | 1.0 | subtracted from the reward of that call |
| `max_steps` | 1000 | actions after which an episode is cut off; earlier rewards remain |

The score is `"score"` of the last info that has it, else the mean return of the `scored` agents,
scaled by `score_range`. Facts in `info` at the end: `return/AGENT`, `steps`, `unreadable` and
`illegal` (replies), `truncated` (by the environment), `cut` (by `max_steps`).

## Version history
* v0: first version.
"""  # noqa: E501 - rows of tables

import inspect
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property, partial
from typing import Any, ClassVar, Literal

from flowzoo.envs.external.text_env import EnvRun, TextEnv, random_action
from flowzoo.envs.script import Ask, GradeResult, Outcome, Payoffs, Script
from flowzoo.envs.settings import Setting, check_seed, check_whole, plain_integers
from flowzoo.envs.tasks.task import SPLITS, Problem, Task, check_split, number_by_first
from flowzoo.envs.workflow import Credit, CreditRule, Roles, Workflow
from flowzoo.errors import UsageError, check_choice
from flowzoo.functions import load_function
from flowzoo.seeding import key_int, key_rng


@dataclass(frozen=True)
class EnvSource:
    """A function that makes an environment: its name and options, as plain values."""

    spec: str
    """`package.module:function`, or `path/to/file.py:function`."""
    options: tuple[tuple[str, Setting], ...] = ()
    """Keyword arguments of the function."""

    @property
    def label(self) -> str:
        """The name with the options, for display."""
        options = ", ".join(f"{name}={value}" for name, value in self.options)
        return f"{self.spec}({options})"

    def make(self) -> TextEnv:
        function = _maker(self.spec)
        options: dict[str, Any] = dict(self.options)
        try:
            inspect.signature(function).bind(**options)
        except TypeError as error:
            raise UsageError(
                f"{self.spec} cannot be called with the options given: {error}; it takes "
                f"{inspect.signature(function)}, and the workflow takes credit, illegal, max_steps "
                "and format_penalty"
            ) from error
        environment = function(**options)
        if isinstance(environment, TextEnv):
            return environment
        try:
            return TextEnv(environment)
        except UsageError as error:
            raise UsageError(f"{self.spec}: {error}") from error


@cache
def _maker(spec: str) -> Callable[..., Any]:
    # The function of a spec, the same object for all episodes of a process.
    return load_function("--env", spec)[0]


Illegal = Literal["random", "end"]

# Number of seeds of one split; eight such ranges fit into 31 bits, which every generator accepts.
_SEEDS = 2**28


@dataclass(frozen=True)
class ResetTask(Task):
    """Problem i of a split is a seed for `reset`."""

    kind: ClassVar[str] = "environment"
    home: ClassVar[str] = "aec_v0"

    name: str = "environment"  # type: ignore[misc]
    """Name of the environment."""
    label: str = ""
    """Name and options of the function that makes the environment."""
    seed: int = 0
    """Key of the seeds."""

    def __post_init__(self) -> None:
        plain_integers(self)
        check_seed(self.seed)

    def size(self, split: str) -> int | None:
        check_split(split)
        return None

    def problem(self, index: int, split: str = "train") -> Problem:
        self.check_index(index, split)
        drawn = key_int("reset", self.seed, index)
        position = drawn % 4 if split == "all" else SPLITS.index(split)
        seed = 8 * (drawn // 4 % _SEEDS) + position
        text = f"{self.label or self.name}, reset(seed={seed})"
        return Problem(self.name, split, self.seed, index, text, "", {"reset": seed})

    def prompt(self, problem: Problem) -> str:
        return problem.text

    def answer(self, text: str) -> str | None:
        return text

    def answer_lenient(self, text: str) -> str | None:
        return text

    def grade_batch(
        self, problems: Sequence[Problem], answers: Sequence[str | None]
    ) -> list[GradeResult]:
        """Raise: an environment's rewards, or a game's pay, are the grade."""
        raise UsageError(
            f"{self.name} has no grader: return Outcome(score=...) or Outcome(payoffs=...) from "
            "play(), or play an external environment with --env"
        )

    def classes(self, problem: Problem, answers: Sequence[str | None]) -> tuple[int, ...]:
        return number_by_first(answers)

    def solve(self, problem: Problem, rng: random.Random, right: bool) -> str:
        """Raise: flowzoo has no experts for external environments."""
        raise UsageError(
            f"there is no scripted expert for {self.name}: name a model, define expert() in the "
            "workflow's class, or return TextEnv(env, scripted={agent: function}) from the function"
        )

    def samples(self) -> tuple[str, ...]:
        return ("0", "1", "2", "yes")


@dataclass(frozen=True)
class AECWorkflow(Workflow):
    """An AEC environment as a workflow; `make_aec_workflow` makes one.

    Raises:
        UsageError: observations or actions are not text and have no hook, or the environment starts
            differently after the same seed.
    """

    name: ClassVar[str] = "aec_v0"
    default_task: ClassVar[str] = "environment"

    source: EnvSource = field(kw_only=True)  # the function that makes environments
    credit: Credit | CreditRule = "local"
    format_penalty: float = 1.0
    illegal: Illegal = "random"  # handling of a reply without a legal action
    max_steps: int = 1000  # actions after which an episode is cut off

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("rule for illegal actions", self.illegal, Illegal)
        check_whole("max_steps", self.max_steps, 1)
        seed = self.task.problem(0).meta["reset"]
        first, again = (self._first_prompt(seed) for _ in range(2))
        if first != again:
            raise UsageError(
                f"{self.source.spec} starts differently after reset(seed={seed}) each time, so its "
                "episodes cannot be compared: derive all randomness from the seed"
            )

    @cached_property
    def call_limit(self) -> int:
        return self.max_calls or self.max_steps

    @property
    def pays_agents(self) -> bool:  # type: ignore[override]
        return self.credit != "team"

    def role_counts(self) -> Roles:
        return self._seats_by_role

    @cached_property
    def _seats_by_role(self) -> Roles:
        game = self.source.make()
        by_role: dict[str, tuple[str, ...]] = {}
        try:
            for name, role in game.seats.values():
                by_role[role] = (*by_role.get(role, ()), name)
        finally:
            game.env.close()
        return by_role

    def _first_prompt(self, seed: int) -> Any:
        game = self.source.make()
        try:
            game.check_text()
            game.env.reset(seed=seed)
            turn = EnvRun(game, "check", self.max_steps).next_turn()
            return turn and (turn.agent, game.messages(turn.observation, turn.agent))
        finally:
            game.env.close()

    def play(self, problem: Problem) -> Script:
        game = self.source.make()
        seats, wrong = game.seats, Counter[str]()
        try:
            game.env.reset(seed=problem.meta["reset"])
            run = EnvRun(game, problem.id, self.max_steps)
            while (turn := run.next_turn()) is not None:
                agent = turn.agent
                reply = yield Ask(
                    seats[agent][0],
                    game.messages(turn.observation, agent),
                    partial(game.legal_action, turn=turn),
                    partial(game.action, agent=agent),
                )
                if reply.strict is None:
                    wrong["unreadable" if reply.lenient is None else "illegal"] += 1
                    if self.illegal == "end":
                        run.forfeit(agent)
                        break
                    # A random action replaces the one that is missing.
                    rng = key_rng("illegal", problem.id, agent, turn.turn)
                    run.act(random_action(game.env.action_space(agent), turn.mask, rng))
                else:
                    run.act(reply.strict[0])
        finally:
            game.env.close()
        facts: dict[str, Any] = {f"return/{name}": paid for name, paid in run.returns.items()}
        facts |= {
            "steps": run.steps,
            "unreadable": wrong["unreadable"],
            "illegal": wrong["illegal"],
        }
        facts |= {"truncated": run.truncated, "cut": run.cut}
        returns = {seats[name][0]: run.returns[name] for name in seats}
        payoffs = Payoffs(returns, tuple(run.rewards))
        return Outcome(score=score_of(game, run), facts=facts, payoffs=payoffs)


def score_of(game: TextEnv, run: EnvRun) -> float:
    """The score of a finished episode; see the module's page."""
    if run.score is not None:
        return run.score
    low, high = game.score_range
    scored = game.scored or tuple(game.seats)
    shares = [(run.returns[agent] - low) / (high - low) for agent in scored]
    for agent, share in zip(scored, shares, strict=True):
        if not -1e-9 <= share <= 1 + 1e-9:
            raise UsageError(
                f"{agent} of {game.name} got a return of {run.returns[agent]:g}, outside the score "
                f"range {low:g} to {high:g}: return TextEnv(env, "
                'score_range=(lowest, highest)) from the function, or put "score" into the infos'
            )
    return min(1.0, max(0.0, sum(shares) / len(shares)))


def make_aec_workflow(spec: str, **options: Any) -> AECWorkflow:
    """Make the workflow of the environments that the function `spec` makes.

    Args:
        spec: `package.module:function` or `path/to/file.py:function`.
        options: `seed` of the problems, settings of `AECWorkflow`, and arguments of the function.

    Raises:
        UsageError: see `EnvSource.make` and `AECWorkflow`.
    """
    accepted = {option.name for option in fields(AECWorkflow)} - {"task", "source"}
    values = {name: options.pop(name) for name in list(options) if name in accepted}
    seed = options.pop("seed", 0)
    source = EnvSource(spec, tuple(options.items()))
    game = source.make()
    name = game.name
    game.env.close()
    return AECWorkflow(
        task=ResetTask(name=name, label=source.label, seed=seed), source=source, **values
    )
