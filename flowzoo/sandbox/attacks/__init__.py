"""The attack suite: programs that try what a sandbox must stop, and honest ones it must not.

    for finding in run_suite(sandbox):
        print(finding.name, finding.got, finding.ok)

`flowzoo sandbox check` runs it against the machine at hand. Every probe is followed by an honest
program that must be accepted within half a second; canaries on the host must stay untouched; and
what a tier cannot promise is listed in `LIMITS_OF_TIER`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flowzoo.sandbox.attacks import (
    escape,
    exits,
    hacks,
    honest,
    network,
    output,
    resources,
    sessions,
    signals,
    state,
    suite,
)
from flowzoo.sandbox.attacks.probe import CATEGORIES, AttackProbe
from flowzoo.sandbox.attacks.suite import ProbeResult, run_control
from flowzoo.sandbox.attacks.tiers import LIMITS_OF_TIER, Limitation
from flowzoo.sandbox.sandbox import Sandbox

__all__ = [
    "CATEGORIES",
    "LIMITS_OF_TIER",
    "PROBES",
    "AttackProbe",
    "Limitation",
    "ProbeResult",
    "run_control",
    "run_suite",
]

PROBES: tuple[AttackProbe, ...] = (
    *honest.PROBES,
    *resources.PROBES,
    *output.PROBES,
    *exits.PROBES,
    *signals.PROBES,
    *escape.PROBES,
    *state.PROBES,
    *network.PROBES,
    *hacks.PROBES,
    *sessions.PROBES,
)
"""All of them."""


def run_suite(sandbox: Sandbox, probes: Iterable[AttackProbe] = PROBES) -> Iterator[ProbeResult]:
    """Run the probes against the sandbox; see `suite.run_suite`."""
    return suite.run_suite(sandbox, probes)
