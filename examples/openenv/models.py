"""What goes over the wire."""

from typing import Any

from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class ReplyAction(Action):
    """A reply of the role that is played over the wire."""

    text: str


class TurnObservation(Observation):
    """What the role is asked now; at the end what it was asked last."""

    messages: list[dict[str, str]] = Field(default_factory=list)
    agent: str = ""
    transcript: list[dict[str, Any]] = Field(default_factory=list)
    """The whole episode, once it is over; empty before."""


class WorkflowState(State):
    """Which problem is played."""

    problem: str = ""
