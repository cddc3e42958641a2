"""A self-check of the sandbox: programs that try what it must stop, and honest ones.

    for result in run_suite(sandbox):
        print(result.name, result.got, result.ok)

`flowzoo sandbox check` runs it on the machine at hand. Every probe is followed by an honest program
that must be accepted within half a second, and canaries on the host must stay untouched. Attacks
that a backend cannot stop are its `limitations`. The whole suite, run in CI on every backend, is in
`tests/sandbox/probes`.
"""

from __future__ import annotations

from flowzoo.sandbox.attacks.probe import CATEGORIES, AttackProbe
from flowzoo.sandbox.attacks.probes import PROBES
from flowzoo.sandbox.attacks.suite import ProbeResult, run_control, run_suite

__all__ = ["CATEGORIES", "PROBES", "AttackProbe", "ProbeResult", "run_control", "run_suite"]
