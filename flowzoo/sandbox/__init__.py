"""Isolated execution of untrusted programs and unbounded work.

Untrusted text is never evaluated outside this package. `Sandbox` tests programs
with the best isolation of the machine; `WorkerPool` runs trusted code on hostile data with a
deadline and a memory limit; `probe` reports the available isolation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowzoo.lazy import lazy_names

if TYPE_CHECKING:
    from flowzoo.sandbox.box.engine import SandboxError as SandboxError
    from flowzoo.sandbox.pool import JobResult as JobResult
    from flowzoo.sandbox.pool import PoolError as PoolError
    from flowzoo.sandbox.pool import WorkerPool as WorkerPool
    from flowzoo.sandbox.pool import shared_pool as shared_pool
    from flowzoo.sandbox.program import CallTest as CallTest
    from flowzoo.sandbox.program import Case as Case
    from flowzoo.sandbox.program import CheckTest as CheckTest
    from flowzoo.sandbox.program import Compare as Compare
    from flowzoo.sandbox.program import Limits as Limits
    from flowzoo.sandbox.program import Program as Program
    from flowzoo.sandbox.program import Status as Status
    from flowzoo.sandbox.program import StdinTest as StdinTest
    from flowzoo.sandbox.program import Test as Test
    from flowzoo.sandbox.program import Verdict as Verdict
    from flowzoo.sandbox.sandbox import Sandbox as Sandbox
    from flowzoo.sandbox.sandbox import shared_sandbox as shared_sandbox
    from flowzoo.sandbox.tier import BACKENDS as BACKENDS
    from flowzoo.sandbox.tier import BackendSpec as BackendSpec
    from flowzoo.sandbox.tier import SandboxName as SandboxName
    from flowzoo.sandbox.tier import Tier as Tier
    from flowzoo.sandbox.tier import TierCheck as TierCheck
    from flowzoo.sandbox.tier import probe as probe

__all__, __getattr__, __dir__ = lazy_names(__name__, {
    "box.engine": "SandboxError",
    "pool": "JobResult PoolError WorkerPool shared_pool",
    "program": "CallTest Case CheckTest Compare Limits Program Status StdinTest Test Verdict",
    "sandbox": "Sandbox shared_sandbox",
    "tier": "BACKENDS BackendSpec SandboxName Tier TierCheck probe",
})  # fmt: skip
