"""Gymnasium environments of one role, with policies in the seats of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowzoo.adapters.outside import PolicyPlayer
from flowzoo.envs.api.solo import SoloEnv


def make_seat(workflow: Any, *, others: Any = None, **options: Any) -> SoloEnv:
    """The environment of a role; the entry point of the Gymnasium registrations.

    Args:
        workflow: name of a workflow, `module:Class`, a Workflow subclass or instance.
        others: who plays the other agents: functions as for `SoloEnv`, or policies as for
            `flowzoo eval --policy` ("scripted:0.5", "hf:PATH", "openai:MODEL@URL") or Policy
            objects, one for all or by role or agent; by default the workflow's scripted expert.
        options: further arguments of `SoloEnv`.
    """
    each = others.values() if isinstance(others, Mapping) else [others]
    if others is None or all(map(callable, each)):
        return SoloEnv(workflow, others=others, **options)
    env = SoloEnv(workflow, **options)
    env.player = PolicyPlayer(env.workflow, others, env.own)
    return env
