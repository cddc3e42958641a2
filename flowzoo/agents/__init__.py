"""Policies, the map from roles to them, and the rollout engine.

Nothing here imports torch or httpx before an engine that needs it is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowzoo.lazy import lazy_names

if TYPE_CHECKING:
    from flowzoo.agents.policy import Completion as Completion
    from flowzoo.agents.policy import Policy as Policy
    from flowzoo.agents.policy import Request as Request
    from flowzoo.agents.policy import Sampling as Sampling
    from flowzoo.agents.policy_map import PolicyMap as PolicyMap

__all__, __getattr__, __dir__ = lazy_names(__name__, {
    "policy": "Completion Policy Request Sampling",
    "policy_map": "PolicyMap",
})  # fmt: skip
