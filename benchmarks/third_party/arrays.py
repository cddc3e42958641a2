"""A role in numbers, for libraries that know arrays only: which of three candidates is right?

The aggregator of `voting_v0` in Gymnasium: its prompt as the last bytes of its text, its reply as
one of three numbers. What a library needs beyond this is its own matter.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import TransformAction, TransformObservation

import flowzoo  # noqa: F401 - registers the environments

BYTES = 256
"""Bytes of a prompt that are kept, the last ones."""


def as_bytes(observation: dict[str, Any]) -> np.ndarray:
    """The end of the last message as float32 in [0, 1], of shape (BYTES,)."""
    chat = observation["messages"]
    said = chat[-1]["content"].encode("utf-8", "replace")[-BYTES:] if chat else b""
    return np.frombuffer(said.rjust(BYTES, b"\0"), dtype=np.uint8).astype(np.float32) / 255


def choose_candidate(_: Any = None) -> gymnasium.Env[Any, Any]:
    """The environment; its argument is ignored, since RLlib gives one."""
    env = gymnasium.make("flowzoo/Voting-v0", role="aggregator")
    chosen = TransformAction(env, lambda number: f"\\boxed{{{number + 1}}}", Discrete(3))
    return TransformObservation(chosen, as_bytes, Box(0, 1, (BYTES,), np.float32))
