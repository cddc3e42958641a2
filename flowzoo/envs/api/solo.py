"""Gymnasium environment of one role of a workflow; functions play the other roles."""

import operator
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import gymnasium

from flowzoo.aliases import AgentInfo, ResetOptions
from flowzoo.envs.api.aec import OFFERED_MODES
from flowzoo.envs.api.registry import make_env
from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.records import EpisodeRecord
from flowzoo.envs.script import Message, Responder
from flowzoo.envs.settings import check_seed
from flowzoo.envs.workflow import Workflow
from flowzoo.errors import UsageError, unknown

SKIPS = 100


class Player(Protocol):
    """Plays the other agents and sees the episode: `flowzoo.adapters.outside.PolicyPlayer`."""

    def reply(self, episode: Episode, agent: str) -> str:
        """The reply of `agent` to its open turn."""
        ...


Others = Responder | Mapping[str, Responder] | None


def own_agents(workflow: Workflow, role: str) -> tuple[str, ...]:
    """The agents that `role` (a role, or one agent of it) names."""
    agents = workflow.agents
    if role in agents:
        return (role,)
    names = tuple(agent for agent, (name, _) in agents.items() if name == role)
    if not names:
        raise unknown("role or agent", role, {name for name, _ in agents.values()} | set(agents))
    return names


class SoloEnv(gymnasium.Env[dict[str, list[Message]], str]):
    """One role of a workflow as a Gymnasium environment.

    Observation `Dict({"messages": Messages()})`, action `Prose()`; at the end `info["transcript"]`
    holds the whole episode. One step is one reply of your role; the reward is the sum that `last()`
    gives over its turns and its dead step. Episodes that never ask your role are skipped, which
    biases the sample of problems; after 100 such episodes in a row `reset` raises.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": [*OFFERED_MODES], "render_fps": 1}  # type: ignore[misc]

    def __init__(
        self,
        workflow: object = "voting_v0",
        role: str | None = None,
        others: Others = None,
        task: object = None,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        """Make the environment.

        Args:
            workflow: name of a workflow, `module:Class`, a Workflow subclass or instance.
            role: the role you play (all of its agents in turn), or one agent such as `generator_0`;
                by default the workflow's first role.
            others: `(role, messages) -> reply` for the other roles, or one per role; by default
                the workflow's scripted expert.
            task: name of a task, or a Task; by default the workflow's own.
            render_mode: None, "human", "ansi" or "rgb_array"; see `WorkflowEnv`.
            options: arguments of the workflow's `env(...)`.

        Raises:
            UsageError: an unknown role, or `others` without an entry for a role that needs one.
        """
        self.aec: Any = make_env(workflow, task, render_mode=render_mode, **options)
        """The inner AEC environment, with its `Guard`."""
        self.render_mode = render_mode
        core = self.aec.unwrapped
        self.workflow = core.workflow
        self.own = own_agents(core.workflow, role or next(iter(core.workflow.role_counts())))
        """Agents that you play."""
        self._others = self._check_others(others)
        self.player: Player | None = None
        """Plays the other roles in place of `others`."""
        self._scripted: Responder
        self.observation_space = core.observation_space(self.own[0])
        self.action_space = core.action_space(self.own[0])

    def _check_others(self, others: Others) -> Others:
        if others is None or callable(others):
            return others
        if not isinstance(others, Mapping):
            raise UsageError(f"`others` must be callable, got {type(others).__name__}")
        agents = self.workflow.agents
        roles = {role for agent, (role, _) in agents.items() if agent not in self.own}
        for name in others:
            if name not in roles:
                raise unknown("role in `others`", name, roles)
        missing = sorted(roles - set(others))
        if missing:
            raise UsageError(f"`others` has no entry for role {', '.join(missing)}")
        return others

    def reset(
        self, *, seed: int | None = None, options: ResetOptions | None = None
    ) -> tuple[dict[str, list[Message]], AgentInfo]:
        """Start an episode in which your role is asked; see `WorkflowEnv.reset` for `options`."""
        seed = None if seed is None else check_seed(seed)
        super().reset(seed=seed)
        options = dict(options or {})
        for _ in range(SKIPS):
            self.aec.reset(seed=seed, options=options)
            core = self.aec.unwrapped
            if self._others is None:
                self._scripted = core.workflow.responder(core.episode.problem)
            if self._play_others():
                agent = self.aec.agent_selection
                return self.aec.observe(agent), dict(self.aec.infos[agent])
            seed = None
            if "index" in options:
                size = core.workflow.task.size(core.split)
                options["index"] = (operator.index(options["index"]) + 1) % (size or 2**31)
        raise UsageError(
            f"role {self.own} was not asked in {SKIPS} episodes in a row; choose another role or "
            "other replies for `others`"
        )

    def _respond(self, agent: str) -> str:
        core = self.aec.unwrapped
        if self.player is not None:
            return self.player.reply(core.episode, agent)
        role = core.workflow.agents[agent][0]
        others: Any = self._scripted if self._others is None else self._others
        respond = others[role] if isinstance(others, Mapping) else others
        return respond(role, core.observe(agent)["messages"])

    def _play_others(self) -> bool:
        env = self.aec
        while not env.unwrapped.episode.done:
            if env.agent_selection in self.own:
                return True
            env.step(self._respond(env.agent_selection))
        return False

    def step(self, action: str) -> tuple[dict[str, list[Message]], float, bool, bool, AgentInfo]:
        """Submit your role's reply and play the others until your role is asked again."""
        env = self.aec
        if not env.agents:
            raise UsageError("the episode has ended: call reset()")
        agent = env.agent_selection
        env.step(action)
        if self._play_others():
            obs, reward, _, _, info = env.last()
            return obs, float(reward), False, False, dict(info)
        truncated = any(env.truncations.values())
        obs = env.observe(agent)
        info = {**env.infos[agent], "transcript": env.transcript()}
        reward = 0.0
        for name in env.agent_iter():
            paid = env.last(observe=False)[1]
            reward += paid if name in self.own else 0.0
            env.step(None)
        return obs, float(reward), not truncated, truncated, info

    def record(self) -> EpisodeRecord:
        """The finished episode as plain records."""
        return self.aec.record()

    def render(self) -> Any:
        """See `WorkflowEnv.render`."""
        return self.aec.render()

    def close(self) -> None:
        """Close the inner environment."""
        self.aec.close()
