"""AEC environment of a workflow: PettingZoo's bookkeeping around an `Episode`, and its guard."""

import asyncio
import copy
import difflib
import secrets
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, ClassVar

from gymnasium.spaces import Dict, Space
from pettingzoo import AECEnv
from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from flowzoo.aliases import AgentInfo, ResetOptions, StateDict
from flowzoo.envs.api.spaces import Messages, Prose, Tools, Turns
from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.episode.recording import (
    episode_rewards,
    final_infos,
    first_infos,
    fresh_info,
    record,
)
from flowzoo.envs.episode.turn import Turn
from flowzoo.envs.records import EpisodeRecord, SampledReply
from flowzoo.envs.render import can_draw, picture_font, print_new, to_ansi, to_array
from flowzoo.envs.script import CountedReply, Message, ReplyCounts
from flowzoo.envs.settings import check_seed, check_whole, whole
from flowzoo.envs.tasks.task import Task, check_split, get_problem, get_size
from flowzoo.envs.workflow import Workflow
from flowzoo.errors import EnvironmentBusyError, UsageError, unknown
from flowzoo.seeding import key_int, nth

Obs = dict[str, list[Message]]
RESET_OPTIONS = ("index", "sample")  # keys of the `options` of `reset`
ENDLESS = 2**31 - 1  # range of drawn indices for a task of unlimited size

# Unknown options that were reported already; PettingZoo's `api_test` passes the first one.
_TOLD = {"options"}
# Similarity above which an unknown key counts as a misspelling: `indx`, `idx`, `samples`.
_NEAR = 0.7
# Packages whose frames lie between a user's line and `reset`.
_BETWEEN = ("flowzoo", "gymnasium", "pettingzoo", "supersuit")


def check_names(options: Mapping[str, object]) -> None:
    """Raise `UsageError` for misspelled options of `reset`; warn once of other unknown ones."""
    # PettingZoo requires that unknown options are ignored; a likely misspelling is an error.
    for name in options:
        if name in RESET_OPTIONS or name in _TOLD:
            continue
        near = difflib.get_close_matches(str(name).lower(), RESET_OPTIONS, n=1, cutoff=_NEAR)
        if near:
            raise UsageError(f"reset() has no option {name!r}: did you mean {near[0]!r}?")
        _TOLD.add(name)
        warnings.warn(
            f"reset() ignores the unknown option {name!r}; its options are "
            f"{', '.join(RESET_OPTIONS)}",
            stacklevel=users_level(),
        )


def users_level() -> int:
    """Return the `stacklevel` with which a warning of the caller points at the user's code."""
    frame: FrameType | None = sys._getframe(1)
    level = 0
    while frame is not None:
        level += 1
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _BETWEEN:
            return level
        frame = frame.f_back
    return 2  # every frame is internal: point at the caller


def _busy_error(what: str) -> EnvironmentBusyError:
    return EnvironmentBusyError(
        f"{what} while an `astep` is under way: await it, or `await env.settle()`"
    )


def _index(task: Task, split: str, requested: object, drawn: int) -> int:
    size = get_size(task, split)
    if size == 0:
        raise UsageError(f"split {split!r} of task {task.name!r} has no problems")
    if requested is None:
        return drawn % (size or ENDLESS)
    index = whole(requested)
    if index is None or index < 0:
        raise UsageError(f'options["index"] must be an integer >= 0, got {requested!r}')
    if size is not None and index >= size:
        raise UsageError(
            f'options["index"] must be below {size}, the size of split {split!r}; got {index}'
        )
    return index


# What an environment does not share with its forks; spaces have random streams.
_FORKED = (
    "agents", "rewards", "_cumulative_rewards", "terminations", "truncations", "infos",
    "observation_spaces", "action_spaces", "state_space", "_answers",
)  # fmt: skip
RENDER_MODES = ("human", "ansi", "rgb_array")
# Render modes that work in this installation; others raise `MissingExtraError`. The tests of
# PettingZoo and other libraries try every mode in the metadata.
OFFERED_MODES = RENDER_MODES if can_draw() else RENDER_MODES[:2]


class WorkflowEnv(AECEnv[str, Obs, str | None]):
    """A workflow as a PettingZoo AEC environment (unguarded; `env()` functions add the guard)."""

    metadata: ClassVar[dict[str, Any]] = {  # pyrefly: ignore[bad-override]
        "render_modes": list(OFFERED_MODES),
        "is_parallelizable": False,
        "render_fps": 1,
    }
    _prompts: dict[str, Turn]
    """Latest turn of each agent that has been asked."""

    def __init__(
        self,
        workflow: Workflow,
        *,
        split: str = "train",
        max_cycles: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Make the environment; `reset` starts an episode.

        Args:
            workflow: the workflow, with its task.
            split: split of the task that problems are drawn from.
            max_cycles: most cycles of an episode, a cycle being one step of each agent, as in
                PettingZoo. If an agent would be asked once more, the episode is truncated and has
                reward 0.
            render_mode: None, "human" (prints each turn as it happens), "ansi" (a string) or
                "rgb_array" (a picture; needs the extra `report`).

        Raises:
            UsageError: an unknown split or render mode, or `max_cycles` below 1.
            MissingExtraError: "rgb_array" without the libraries that draw it.
        """
        super().__init__()
        check_split(split)
        if max_cycles is not None:
            check_whole("max_cycles", max_cycles, 1)
        if render_mode is not None and render_mode not in RENDER_MODES:
            raise unknown("render mode", render_mode, RENDER_MODES)
        if render_mode == "rgb_array":
            picture_font()
        self.workflow = workflow
        self.split = split
        self.max_cycles = max_cycles
        self.render_mode = render_mode
        # Wrappers add modes to the list, so that each environment has its own.
        self.metadata = {  # type: ignore[misc]
            **type(self).metadata,
            "render_modes": [*OFFERED_MODES],
            "name": workflow.name,
            "is_parallelizable": workflow.simultaneous,
        }
        self.possible_agents = list(workflow.agents)
        samples = workflow.samples()
        self.observation_spaces: dict[str, Space[Any]] = {
            agent: Dict(
                {"messages": Messages(), "tools": Tools()}
                if role in workflow.tool_roles
                else {"messages": Messages()}
            )
            for agent, (role, _) in workflow.agents.items()
        }
        self.action_spaces: dict[str, Space[Any]] = {
            agent: Prose(samples) for agent in self.possible_agents
        }
        self.state_space: Space[Any] = Turns()
        self._stream, self._resets = secrets.randbits(64), 0  # of problems; a seed restarts it
        self._episode: Episode | None = None
        self._busy = False
        self._settling = False
        self._rendered = 0

    # -- PettingZoo ----------------------------------------------------------------------------

    def observation_space(self, agent: str) -> Space[Any]:
        """The chat of an agent: `Dict({"messages": Messages()})`, perhaps with `tools`."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        """The reply of an agent: any string."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: ResetOptions | None = None) -> None:
        """Start an episode on the problem `options["index"]`, or on one drawn from the split.

        Args:
            seed: seed of the draws of this problem and the following ones.
            options: `index` picks a problem; `sample` (0, 1, …) tells episodes of one problem
                apart, in `info["episode_key"]` and in records; default: the number of resets since
                the seed. Unknown keys are ignored with a warning, as PettingZoo requires; a
                misspelling of these two is an error.

        Raises:
            UsageError: `seed` is not an integer, `index` is outside the split, `sample` is not an
                integer of at least 0, or an option is misspelled.
        """
        self._begin_episode(seed, options)
        self._settle_now()

    async def areset(self, seed: int | None = None, options: ResetOptions | None = None) -> None:
        """Async `reset`: await effects instead of blocking on them."""
        self._begin_episode(seed, options)
        await self.settle()

    def step(self, action: str | None) -> None:
        """Submit the reply of the selected agent (None for an agent whose episode has ended).

        Raises:
            UsageError: the action is not a str, or the episode needs a reset.
            EnvironmentBusyError: an `astep` is under way.
            WorkflowError: the workflow's script failed; the environment then needs a reset.
        """
        if self._begin_step(action):
            self._settle_now()

    async def astep(self, action: str | None) -> None:
        """Async `step`. After a cancellation, `await settle()` completes the step."""
        if self._begin_step(action):
            await self.settle()

    async def settle(self) -> None:
        """Finish a step whose effects are pending; otherwise do nothing."""
        if not self._busy:
            return
        if self._settling:
            raise EnvironmentBusyError(
                "`settle` is already in progress: only one task may use an environment"
            )
        self._settling = True
        try:
            with self._completion() as episode:
                while effects := episode.pending_effects:
                    task, judge = self.workflow.task, self.workflow.judge
                    episode.resolve(await asyncio.to_thread(resolve, task, effects, judge))
        finally:
            self._settling = False

    def observe(self, agent: str) -> Obs:
        """A fresh copy of the latest prompt of `agent`; no messages if it has not been asked yet.

        Observations of `tool_roles` also have `tools`, in the format of chat templates and
        endpoints.
        """
        if agent not in self.observation_spaces:
            raise unknown("agent", agent, self.possible_agents)
        turn = self._prompts.get(agent)
        seen = {"messages": turn.observe() if turn is not None else []}
        if self.workflow.agents[agent][0] in self.workflow.tool_roles:
            seen["tools"] = [tool.schema() for tool in turn.tools] if turn is not None else []
        return seen

    def last(self, observe: bool = True) -> tuple[Obs | None, float, bool, bool, AgentInfo]:
        """Observation, reward since its last turn, termination, truncation, info of the agent."""
        if self._busy:
            raise _busy_error("`last`")
        agent = self.agent_selection
        return (
            self.observe(agent) if observe else None,
            self._cumulative_rewards[agent],
            self.terminations[agent],
            self.truncations[agent],
            self.infos[agent],
        )

    def render(self) -> Any:
        """Print the turns not printed yet (`human`), or return the transcript.

        It is a string (`ansi`), or the picture of its newest lines (`rgb_array`): uint8 of shape
        (720, 960, 3).
        """
        if self.render_mode == "ansi":
            return to_ansi(self.episode)
        if self.render_mode == "rgb_array":
            return to_array(self.episode)
        if self.render_mode == "human":
            self._rendered = print_new(self.episode, self._rendered)
        return None

    def close(self) -> None:
        """Drop the episode, the only resource."""
        self._episode = None

    # -- flowzoo -------------------------------------------------------------------------------

    @property
    def episode(self) -> Episode:
        """The running or finished episode.

        Raises:
            UsageError: before the first reset.
        """
        if self._episode is None:
            raise UsageError("no episode: call reset() first")
        return self._episode

    def record(self) -> EpisodeRecord:
        """The finished episode as plain records."""
        return record(self.episode, self._answers)

    def transcript(self) -> list[dict[str, Any]]:
        """The transcript so far, as plain dicts."""
        return self.episode.transcript()

    def state(self) -> Any:
        """The transcript, an element of `state_space`: chats have no array form."""
        return self.transcript()

    def fork(self) -> "WorkflowEnv":
        """An independent environment in the same state, by replaying the episode.

        Raises:
            EnvironmentBusyError: an `astep` is under way.
        """
        if self._busy:
            raise _busy_error("`fork`")
        twin = copy.copy(self)
        twin._episode = self.episode.fork()
        twin._prompts = {turn.agent: turn for turn in twin._episode.turns}
        for name in _FORKED:
            setattr(twin, name, copy.deepcopy(getattr(self, name)))
        return twin

    def __getstate__(self) -> StateDict:
        # Replaying the episode restores the open prompts.
        if self._busy:
            raise _busy_error("pickling")
        return {name: value for name, value in vars(self).items() if name != "_prompts"}

    def __setstate__(self, state: StateDict) -> None:
        self.__dict__.update(state)
        turns = self._episode.turns if self._episode is not None else []
        self._prompts = {turn.agent: turn for turn in turns}

    # -- internals -----------------------------------------------------------------------------

    def _begin_episode(self, seed: int | None, options: ResetOptions | None) -> None:
        if self._settling:
            raise EnvironmentBusyError(
                "`reset` while an `astep` is under way: await or cancel it first"
            )
        index, sample = self._draw(seed, options or {})
        problem = get_problem(self.workflow.task, index, self.split)
        key = f"{problem.id}#{sample}"
        agents = self.possible_agents
        self.agents = agents.copy()
        self.rewards = dict.fromkeys(agents, 0.0)
        self._cumulative_rewards = self.rewards.copy()
        self.terminations = dict.fromkeys(agents, False)
        self.truncations = self.terminations.copy()
        self.infos = first_infos(self.workflow.agents, problem, key)
        self.agent_selection = agents[0]
        self._prompts = {}
        self._answers: dict[int, Mapping[str, Any]] = {}
        self._rendered = 0
        self._busy = False
        self._episode = None
        self._episode = Episode(self.workflow, problem, key, self.max_cycles)
        self._busy = True

    def _draw(self, seed: int | None, options: ResetOptions) -> tuple[int, int]:
        # Index and sample of the next episode.
        check_names(options)
        stream, resets = self._stream, self._resets
        if seed is not None:
            stream, resets = key_int("reset", check_seed(seed)), 0
        index = _index(self.workflow.task, self.split, options.get("index"), nth(stream, resets))
        sample = options.get("sample")
        number = resets if sample is None else whole(sample)
        if number is None or number < 0:
            raise UsageError(f'options["sample"] must be an integer >= 0, got {sample!r}')
        self._stream, self._resets = stream, resets + 1
        return index, number

    def _begin_step(self, action: str | None) -> bool:
        # Returns True if effects or the commit are still to come.
        if self._busy:
            raise EnvironmentBusyError(
                "`step` while another step of this environment is under way: only one task may use "
                "an environment; await the other step, or `await env.settle()` after a cancellation"
            )
        episode, agent = self.episode, self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._leave(agent, action)
            return False
        action = self._plain(agent, action)
        self._cumulative_rewards[agent] = 0.0
        self._busy = True
        try:
            episode.reply(agent, action)
        except Exception:
            self._episode, self._busy = None, False
            raise
        return True

    def _plain(self, agent: str, action: object) -> str:
        if not isinstance(action, str):
            raise UsageError(
                f"the action of {agent} must be a str (its reply), got {type(action).__name__}"
            )
        text = str.__str__(action)
        if not isinstance(action, SampledReply):
            return text
        self._answers[self._prompts[agent].call] = action.engine()
        if not self.workflow.counts_replies:
            return text
        finish = "length" if action.finish == "length" else "stop"
        counts = ReplyCounts(finish, len(action.prompt_ids), len(action.output_ids))
        return CountedReply(text, counts)

    def _settle_now(self) -> None:
        with self._completion() as episode:
            while effects := episode.pending_effects:
                episode.resolve(resolve(self.workflow.task, effects, self.workflow.judge))

    @contextmanager
    def _completion(self) -> Iterator[Episode]:
        # After a failed script only a reset helps.
        try:
            yield self.episode
            self._commit(self.episode)
        except Exception:
            self._episode, self._busy = None, False
            raise
        if self.render_mode == "human":
            self.render()

    def _commit(self, episode: Episode) -> None:
        # One synchronous block: no other task sees PettingZoo's fields half-written.
        if episode.done:
            self._finish(episode)
        else:
            asks, answered = episode.asks, self._prompts.get(self.agent_selection)
            if answered is not None and answered.phase == asks[0].phase:
                self.agent_selection = asks[answered.slot + 1].agent  # mates follow by slot
            else:
                self._publish(asks)
                self.agent_selection = asks[0].agent
        self._busy = False

    # -- PettingZoo's fields --------------------------------------------------------------------

    def _publish(self, phase: tuple[Turn, ...]) -> None:
        prompts, infos = self._prompts, self.infos
        for turn in phase:
            agent = turn.agent
            prompts[agent] = turn
            info = infos[agent]
            if turn.turn:  # an earlier one was returned to a caller
                info = infos[agent] = fresh_info(info)
            info["phase"], info["slot"], info["turn"] = turn.phase, turn.slot, turn.turn
            info["acted"] = True

    def _finish(self, episode: Episode) -> None:
        # Rewards arrive in the dead steps: every agent is selected once more, with `termination`
        # true and its return. Agents that were never asked stay to the end and get 0.
        settled = episode_rewards(episode)
        agents, paid = self.agents, self._cumulative_rewards
        self.infos = final_infos(episode, settled, self.infos)
        self.rewards = dict(settled.returns)
        for agent, value in settled.returns.items():
            paid[agent] += value
        self.terminations = dict.fromkeys(agents, not episode.truncated)
        self.truncations = dict.fromkeys(agents, episode.truncated)
        self.agent_selection = agents[0]

    def _leave(self, agent: str, action: object) -> None:
        # The dead step of `agent`. All agents end at once, so the next one is the first. Equivalent
        # to PettingZoo's `_was_dead_step` in this case, without its scans.
        if action is not None:
            raise UsageError(
                f"the episode of {agent} has ended: step(None), got {type(action).__name__}. "
                "Loop with `action = None if termination or truncation else ...`."
            )
        agents = self.agents
        if len(agents) == len(self.possible_agents):  # the first to leave: rewards are paid once
            self._clear_rewards()
        del self.terminations[agent], self.truncations[agent], self.infos[agent]
        del self.rewards[agent], self._cumulative_rewards[agent]
        agents.remove(agent)
        if agents:
            self.agent_selection = agents[0]


class Guard(OrderEnforcingWrapper[str, Obs, str | None]):
    """Checks the order of calls of a `WorkflowEnv`, of its forks and async methods too."""

    env: WorkflowEnv  # pyrefly: ignore[bad-override-mutable-attribute]

    def __getattr__(self, name: str) -> Any:
        if name in ("record", "settle", "transcript"):
            self._live(name)
        return super().__getattr__(name)

    def _live(self, what: str) -> WorkflowEnv:
        if not self._has_reset:
            raise AttributeError(f"{what} cannot be accessed before reset")
        return self.env

    def observe(self, agent: str) -> Obs:
        """See `WorkflowEnv.observe`."""
        return self._live("observe").observe(agent)

    def state(self) -> Any:
        """See `WorkflowEnv.state`."""
        return self._live("state").state()

    def reset(self, seed: int | None = None, options: ResetOptions | None = None) -> None:
        """See `WorkflowEnv.reset`."""
        self.env.reset(seed=seed, options=options)
        self._has_reset = self._has_updated = True

    async def areset(self, seed: int | None = None, options: ResetOptions | None = None) -> None:
        """See `WorkflowEnv.areset`."""
        try:
            await self.env.areset(seed=seed, options=options)
        except asyncio.CancelledError:
            self._has_reset = self._has_updated = True  # so that `settle` can complete it
            raise
        self._has_reset = self._has_updated = True

    def agent_iter(self, max_iter: int = 2**63) -> Iterator[str]:  # type: ignore[override]
        """Yield the selected agent until no agent is left; every iteration must call `step`."""
        self._live("agent_iter")
        return self._iterate(max_iter)

    def last(self, observe: bool = True) -> tuple[Obs | None, float, bool, bool, AgentInfo]:
        """See `WorkflowEnv.last`."""
        if not self._live("last").agents:
            raise UsageError("`last` after the episode: every agent has left; call reset()")
        return self.env.last(observe)

    def step(self, action: str | None) -> None:
        """See `WorkflowEnv.step`."""
        if self._may_step():
            self.env.step(action)

    async def astep(self, action: str | None) -> None:
        """See `WorkflowEnv.astep`."""
        if self._may_step():
            await self.env.astep(action)

    def _may_step(self) -> bool:
        # As in PettingZoo: an error before `reset`, only a warning after the end.
        if not self._live("step").agents:
            OrderEnforcingWrapper.step(self, None)
            return False
        self._has_updated = True
        return True

    def fork(self) -> "Guard":
        """An independent guarded environment in the same state."""
        twin = Guard(self._live("fork").fork())
        twin._has_reset, twin._has_updated = self._has_reset, self._has_updated
        return twin

    def __getstate__(self) -> StateDict:
        # Needed because BaseWrapper's `__getattr__` hides private names.
        return dict(vars(self))

    def __setstate__(self, state: StateDict) -> None:
        self.__dict__.update(state)

    def __str__(self) -> str:
        return str(self.env)

    def _iterate(self, max_iter: int) -> Iterator[str]:
        env = self.env
        for _ in range(min(max_iter, sys.maxsize)):
            if not env.agents:
                return
            if not self._has_updated:
                raise UsageError("call step() or reset() in every turn of an `agent_iter` loop")
            self._has_updated = False
            yield env.agent_selection
