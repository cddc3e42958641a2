"""The attack suite: programs that try what a sandbox must stop, and honest ones it must not.

Those of `flowzoo sandbox check` are in `flowzoo.sandbox.attacks.probes`; these are the others.
"""

from __future__ import annotations

from flowzoo.sandbox.attacks import probes as self_check
from flowzoo.sandbox.attacks.probes import AttackProbe
from tests.sandbox.probes import (
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
)

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
    *self_check.PROBES,  # last: one renames a file that others of `escape` look for
)
