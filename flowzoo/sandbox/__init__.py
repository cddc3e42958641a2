"""Isolated execution of untrusted programs and unbounded work.

Untrusted text is never evaluated outside this package. `Sandbox` tests programs
with the best isolation of the machine; `WorkerPool` runs trusted code on hostile data with a
deadline and a memory limit; `probe` reports the available isolation.
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
"""Names that are imported lazily: their modules import asyncio, which would cost memory in every
worker of a pool."""

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
    """Import the sandbox at the first access."""
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"flowzoo.sandbox.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'flowzoo.sandbox' has no attribute {name!r}")
