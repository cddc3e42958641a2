"""What each tier cannot promise: shown by `flowzoo sandbox check`, and never hidden.

A finding on this list does not count as a broken promise; everything else does.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from flowzoo.sandbox.attacks.probe import AttackProbe, Category


class Limitation(NamedTuple):
    """One thing that a tier cannot stop."""

    text: str
    names: frozenset[str] = frozenset()
    """Probes that show it."""
    categories: frozenset[Category] = frozenset()
    """Whole categories that show it."""


_KERNEL: Final = Limitation(
    "a hole in the kernel itself: programs share it with the host (docker: "
    'options={"runtime": "runsc"} puts another kernel in between)'
)
_TIMING: Final = Limitation("programs can measure how busy the machine is")

LIMITS_OF_TIER: Final[dict[str, tuple[Limitation, ...]]] = {
    "docker": (_KERNEL, _TIMING),
    "namespaces": (
        _KERNEL,
        _TIMING,
        Limitation("memory is bounded per process and by watching, not by a cgroup of its own"),
    ),
    "landlock": (
        _KERNEL,
        _TIMING,
        Limitation("memory is bounded per process and by watching, not by a cgroup of its own"),
        Limitation(
            "Landlock does not hide the names, sizes and times of files from who knows their paths",
            names=frozenset({"size of a file of the host"}),
        ),
    ),
    "unsafe": (
        Limitation(
            "nothing stands between a program and the files, processes, network and kernel that "
            "its user may reach; probes that would harm the machine are not run",
            categories=frozenset({"escape", "network", "signals", "state"}),
        ),
        Limitation(
            "processes, files and memory outside the address space are not bounded",
            names=frozenset(
                {
                    "fork bomb",
                    "thread bomb",
                    "memory files outside the address space",
                    "pipes filled",
                    "fills /tmp",
                    "endless files",
                    "truncate to 1 TB",
                    "child that keeps stdout open",
                }
            ),
        ),
    ),
}


def is_promised(tier: str, probe: AttackProbe) -> bool:
    """Whether the tier promises to stop what the probe tries."""
    return not any(
        probe.name in limit.names or probe.category in limit.categories
        for limit in LIMITS_OF_TIER.get(tier, ())
    )
