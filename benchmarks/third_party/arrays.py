"""A role in numbers, for libraries that know arrays only: which of three candidates is right?"""

from __future__ import annotations

from typing import Any

import gymnasium

import flowzoo  # noqa: F401 - registers the environments
from flowzoo.adapters.arrays import BareInfos, ByteEncoder, Choose, Encode


def choose_candidate(_: Any = None) -> gymnasium.Env[Any, Any]:
    """The aggregator of a vote of half-right voters; RLlib gives an argument, which is ignored."""
    env = gymnasium.make("flowzoo/Voting-v0", role="aggregator", others="scripted:0.5")
    replies = [f"\\boxed{{{number}}}" for number in (1, 2, 3)]
    return BareInfos(Choose(Encode(env, ByteEncoder()), replies))
