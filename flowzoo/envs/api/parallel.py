"""PettingZoo ParallelEnv of workflows in which every agent acts in every step."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from gymnasium.spaces import Space
from pettingzoo import ParallelEnv

from flowzoo.aliases import AgentInfo, ResetOptions
from flowzoo.envs.api.aec import OFFERED_MODES, Obs, WorkflowEnv
from flowzoo.envs.api.registry import make_workflow
from flowzoo.envs.records import EpisodeRecord
from flowzoo.envs.workflow import Workflow
from flowzoo.errors import UsageError

ParallelStep = tuple[
    dict[str, Obs], dict[str, float], dict[str, bool], dict[str, bool], dict[str, AgentInfo]
]


class ParallelWorkflowEnv(ParallelEnv[str, Obs, str]):
    """A simultaneous workflow as a PettingZoo parallel environment.

    Raises:
        UsageError: the workflow is not simultaneous, or an argument of `WorkflowEnv` is wrong.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": [*OFFERED_MODES], "render_fps": 1}  # pyrefly: ignore[bad-override]

    def __init__(self, workflow: Workflow, **options: Any) -> None:
        if not workflow.simultaneous:
            raise UsageError(
                f"not every agent of {workflow.name} acts in every step: use its AEC environment, "
                "env(...)"
            )
        self.aec = WorkflowEnv(workflow, **options)
        self.render_mode = self.aec.render_mode
        self.metadata = {**self.aec.metadata}  # type: ignore[misc]
        self.possible_agents = list(self.aec.possible_agents)
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Space[Any]:
        """The chat of an agent: `Dict({"messages": Messages()})`."""
        return self.aec.observation_space(agent)

    def action_space(self, agent: str) -> Space[Any]:
        """The reply of an agent: any string."""
        return self.aec.action_space(agent)

    def reset(
        self, seed: int | None = None, options: ResetOptions | None = None
    ) -> tuple[dict[str, Obs], dict[str, AgentInfo]]:
        """Start an episode; see `WorkflowEnv.reset`."""
        self.aec.reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        observations, *_, infos = self._results()
        return observations, infos

    def step(self, actions: Mapping[str, str]) -> ParallelStep:
        """Submit the reply of every agent to its open prompt.

        Raises:
            UsageError: the acting agents are not exactly `agents`, or an action is not a str.
            WorkflowError: the workflow's script failed; the environment then needs a reset.
        """
        for agent in self._check(actions):
            self.aec.step(actions[agent])
        return self._results()

    async def astep(self, actions: Mapping[str, str]) -> ParallelStep:
        """Async `step`: await effects instead of blocking on them."""
        for agent in self._check(actions):
            await self.aec.astep(actions[agent])
        return self._results()

    def _check(self, actions: Mapping[str, str]) -> list[str]:
        # The agents in the order in which the AEC environment asks them.
        if not self.agents:
            raise UsageError("the episode has not started or has ended: call reset()")
        if set(actions) != set(self.agents):
            raise UsageError(f"expected one action each for {self.agents}, got {sorted(actions)}")
        for agent, action in actions.items():
            if not isinstance(action, str):
                raise UsageError(
                    f"the action of {agent} must be a str, got {type(action).__name__}"
                )
        waiting = [turn.agent for turn in self.aec.episode.waiting]
        if set(waiting) != set(self.agents):
            raise UsageError(
                f"{self.aec.workflow.name} is declared as simultaneous, but asked only {waiting}"
            )
        return waiting

    def _results(self) -> ParallelStep:
        env = self.aec
        if env.episode.done:  # all agents end at once: there is no dead step
            self.agents = []
        observations = {agent: env.observe(agent) for agent in self.possible_agents}
        infos = {agent: dict(info) for agent, info in env.infos.items()}
        return (
            observations, dict(env.rewards), dict(env.terminations), dict(env.truncations), infos
        )  # fmt: skip

    def render(self) -> Any:
        """See `WorkflowEnv.render`."""
        return self.aec.render()

    def close(self) -> None:
        """Drop the episode."""
        self.aec.close()

    def record(self) -> EpisodeRecord:
        """The finished episode as plain records."""
        return self.aec.record()

    def state(self) -> Any:
        """See `WorkflowEnv.state`."""
        return self.aec.state()

    @property
    def state_space(self) -> Space[Any]:
        """The space of `state()`."""
        return self.aec.state_space


def make_parallel_env(
    workflow: object, task: object = None, **options: object
) -> ParallelWorkflowEnv:
    """The parallel environment of a workflow, its class or its name; options as for `env`."""
    return parallel_function(workflow)(task, **options)


def parallel_function(kind: object) -> Callable[..., ParallelWorkflowEnv]:
    """`parallel_env` of a workflow class, for a versioned module; options as for `env`."""

    def parallel_env(
        task: object = None,
        *,
        split: str = "train",
        max_cycles: int | None = None,
        render_mode: str | None = None,
        **options: object,
    ) -> ParallelWorkflowEnv:
        workflow = make_workflow(kind, task, **options)
        return ParallelWorkflowEnv(
            workflow, split=split, max_cycles=max_cycles, render_mode=render_mode
        )

    named = getattr(kind, "name", kind)
    parallel_env.__doc__ = f"The parallel environment of {named}; see the module's page."
    return parallel_env
