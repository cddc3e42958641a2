"""The Gymnasium view of a workflow as a server of OpenEnv: the client plays one role.

    uvicorn server:app --port 8000          # in this folder

FLOWZOO_WORKFLOW names the workflow (voting), FLOWZOO_ROLE the role (by default the first); the
workflow's scripted expert plays the others. `reset` takes a seed, or `index` and `split`.
"""

import os
from typing import Any
from uuid import uuid4

from models import ReplyAction, TurnObservation, WorkflowState
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment

from flowzoo.envs.api.solo import SoloEnv


class WorkflowEnvironment(Environment[ReplyAction, TurnObservation, WorkflowState]):
    """One role of a workflow."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        """Make the view; every session has its own."""
        super().__init__()
        workflow = os.environ.get("FLOWZOO_WORKFLOW", "voting")
        self._env = SoloEnv(workflow, role=os.environ.get("FLOWZOO_ROLE"))
        self._state = WorkflowState()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **options: Any
    ) -> TurnObservation:
        """Begin an episode in which the role is asked."""
        known = {name: options[name] for name in ("index", "split") if name in options}
        seen, info = self._env.reset(seed=seed, options=known)
        core: Any = self._env.aec.unwrapped
        problem = core.episode.problem.id
        self._state = WorkflowState(episode_id=episode_id or str(uuid4()), problem=problem)
        return self._turn(seen, info)

    def step(
        self, action: ReplyAction, timeout_s: float | None = None, **kwargs: Any
    ) -> TurnObservation:
        """Reply; the others answer until the role is asked again or the episode ends."""
        seen, reward, terminated, truncated, info = self._env.step(action.text)
        self._state.step_count += 1
        return self._turn(seen, info, reward=reward, done=terminated or truncated)

    def _turn(self, seen: Any, info: dict[str, Any], **rest: Any) -> TurnObservation:
        transcript = info.pop("transcript", [])
        agent = "" if transcript else self._env.aec.agent_selection
        seen = {"messages": seen["messages"], "agent": agent, "transcript": transcript}
        return TurnObservation(**seen, metadata=info, **rest)

    @property
    def state(self) -> WorkflowState:
        """Which episode this is, and how many replies were given."""
        return self._state

    def close(self) -> None:
        """End the view."""
        self._env.close()


app = create_app(
    WorkflowEnvironment, ReplyAction, TurnObservation, env_name="flowzoo", max_concurrent_envs=64,
    state_cls=WorkflowState,
)  # fmt: skip
