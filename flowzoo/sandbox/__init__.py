"""Where untrusted or unbounded work runs.

Untrusted text is never evaluated outside this room. For now the room holds the probe that says
which kind of isolation this machine offers, and the killable worker pool; the runner of programs
and its backends build on both.
"""

from __future__ import annotations

from flowzoo.sandbox.pool import WorkerPool, shared_pool
from flowzoo.sandbox.pool_protocol import PoolFailed, Result
from flowzoo.sandbox.tier import Check, Tier, TierName, probe

__all__ = [
    "Check",
    "PoolFailed",
    "Result",
    "Tier",
    "TierName",
    "WorkerPool",
    "probe",
    "shared_pool",
]
