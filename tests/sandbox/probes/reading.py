"""Probes of a TOML file: a table for each, with the keys of `stdin` and of `Limits`.

`tests` and `limits` stand there or are named; the file's `[tests]`, `[limits]` and `[prelude]` have
the shared ones. A probe with an `entry` is a function that is called.
"""

import tomllib
from pathlib import Path
from typing import Any

from flowzoo.sandbox.attacks.probes import CHECK, NAP, AttackProbe, Category, call, stdin
from flowzoo.sandbox.program import CallTest, CheckTest, Limits, StdinTest, Test

HEAVY = Limits(cpu_s=3.0, wall_s=10.0, memory_mb=128)  # for probes that another limit stops


def read_probes(name: str, category: Category | None = None) -> tuple[AttackProbe, ...]:
    """Probes of the file `name.toml`; they are of the category `name` unless they say another."""
    tables = tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text(encoding="utf-8"))
    preludes = tables.pop("prelude", {})
    shared = {
        "tests": {"check": CHECK} | {k: read_tests(v) for k, v in tables.pop("tests", {}).items()},
        "limits": {"nap": NAP, "heavy": HEAVY}
        | {k: Limits(**v) for k, v in tables.pop("limits", {}).items()},
    }
    probes = []
    for title, table in tables.items():
        for field, read in (("tests", read_tests), ("limits", lambda row: Limits(**row))):
            if field in table:
                value = table[field]
                table[field] = shared[field][value] if isinstance(value, str) else read(value)
        source = preludes.get(table.pop("prelude", ""), "") + table.pop("source")
        make = call if "entry" in table else stdin
        kind = table.pop("category", category or name)
        probes.append(make(kind, title, table.pop("allowed"), source, **table))
    return tuple(probes)


def read_tests(rows: list[dict[str, Any]]) -> tuple[Test, ...]:
    """Tests of a probe: `stdin` with `expected`, `args` with `expected`, or `check` with `call`."""
    return tuple(read_test(row) for row in rows)


def read_test(row: dict[str, Any]) -> Test:
    """One test, by the key that it has."""
    if "stdin" in row:
        return StdinTest(row["stdin"], row["expected"])
    if "check" in row:
        return CheckTest(row["check"], row.get("call", ""))
    return CallTest(tuple(row["args"]), row["expected"], row.get("kwargs", {}))
