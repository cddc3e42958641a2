"""A client with types; `openenv.core.GenericEnvClient` does the same with dicts."""

from typing import Any

from models import ReplyAction, TurnObservation, WorkflowState
from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient


class WorkflowClient(EnvClient[ReplyAction, TurnObservation, WorkflowState]):
    """Plays one role on a server."""

    def _step_payload(self, action: ReplyAction) -> dict[str, Any]:
        return action.model_dump()

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[TurnObservation]:
        done, reward = payload.get("done", False), payload.get("reward")
        seen = TurnObservation(**{**payload.get("observation", {}), "done": done, "reward": reward})
        return StepResult(observation=seen, reward=reward, done=done)

    def _parse_state(self, payload: dict[str, Any]) -> WorkflowState:
        return WorkflowState(**payload)
