"""Policies, the map from roles to them, and the rollout engine.

Nothing here imports torch or httpx before an engine that needs it is made.
"""

from __future__ import annotations

from flowzoo.agents.policy import Completion, Policy, Request, Sampling
from flowzoo.agents.policy_map import PolicyMap

__all__ = ["Completion", "Policy", "PolicyMap", "Request", "Sampling"]
