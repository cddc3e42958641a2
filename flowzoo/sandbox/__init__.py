"""Isolated execution of untrusted programs and unbounded work.

Untrusted text is never evaluated outside this room. `Sandbox` judges programs by their tests under
the best isolation that the machine offers; `WorkerPool` gives trusted code with hostile data a
deadline and a memory limit; `probe` says which isolation there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowzoo.sandbox.pool import JobResult, PoolError, WorkerPool, shared_pool
from flowzoo.sandbox.program import (
    CallTest,
    Case,
    CheckTest,
    Compare,
    Limits,
    Program,
    Status,
    StdinTest,
    Test,
    Verdict,
)
from flowzoo.sandbox.tier import BACKENDS, BackendSpec, SandboxName, Tier, TierCheck, probe

if TYPE_CHECKING:
    from flowzoo.sandbox.box.engine import SandboxError
    from flowzoo.sandbox.sandbox import Sandbox, shared_sandbox

_LAZY = {"Sandbox": "sandbox", "SandboxError": "box.engine", "shared_sandbox": "sandbox"}
"""Names whose modules bring asyncio, which would cost every worker of a pool memory."""

__all__ = [
    "BACKENDS",
    "BackendSpec",
    "CallTest",
    "Case",
    "CheckTest",
    "Compare",
    "JobResult",
    "Limits",
    "PoolError",
    "Program",
    "Sandbox",
    "SandboxError",
    "SandboxName",
    "Status",
    "StdinTest",
    "Test",
    "Tier",
    "TierCheck",
    "Verdict",
    "WorkerPool",
    "probe",
    "shared_pool",
    "shared_sandbox",
]


def __getattr__(name: str) -> Any:
    """Import the sandbox when it is first asked for."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"flowzoo.sandbox.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'flowzoo.sandbox' has no attribute {name!r}")
