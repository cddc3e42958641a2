"""Who answers: policies, the roster that maps roles to them, and the rollout engine.

Nothing here imports torch or httpx before an engine that needs it is made.
"""

from __future__ import annotations

from flowzoo.agents.policy import Completion, Policy, Request, Sampling
from flowzoo.agents.roster import Roster

__all__ = ["Completion", "Policy", "Request", "Roster", "Sampling"]
