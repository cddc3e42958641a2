"""The attack suite: programs that try what a sandbox must stop, and honest ones it must not.

Those of `flowzoo sandbox check` are in `flowzoo.sandbox.attacks.probes`; these are the others: a
TOML file for each subject, and `generated.py` for programs that are put together.
"""

from flowzoo.sandbox.attacks import probes as self_check
from flowzoo.sandbox.attacks.probes import AttackProbe
from tests.sandbox.probes import generated
from tests.sandbox.probes.reading import read_probes

PROBES: tuple[AttackProbe, ...] = (
    *read_probes("honest"),
    *read_probes("resources"),
    *read_probes("output"),
    *read_probes("exit"),
    *read_probes("signals"),
    *read_probes("escape"),
    *read_probes("state"),
    *read_probes("network"),
    *read_probes("hacks"),
    *read_probes("sessions", category="hacks"),
    *generated.PROBES,
    *self_check.PROBES,  # last: one renames a file that others of `escape` look for
)
