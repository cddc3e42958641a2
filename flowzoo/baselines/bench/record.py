"""What a bench found, in a file that grows with every row."""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from flowzoo.baselines.bench.quiet import Others, load, wait_until_quiet
from flowzoo.baselines.bench.rounds import Plan, digits
from flowzoo.errors import DataError
from flowzoo.files import reading, replace_text, writing
from flowzoo.provenance import source_revision, usable_cores, versions

_NUMBERS = re.compile(r'\[\s+([^\[\]{}"]*?)\s+\]')
"""A list of numbers over many lines."""

Row = dict[str, Any]
WITH = {"data": "math", "runs": "learning", "trl": "learner"}
"""Option with a path -> the bench that reads it."""
Measure = Callable[[Plan], Iterator[Row]]


def machine_facts() -> Row:
    """What figures depend on; no names and no paths."""
    return {
        "cores": usable_cores(),
        "processor": _processor(),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": versions(),
        "source": source_revision(),
    }


def _processor() -> str:
    """The model's name, or the architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def read_benches(path: Path) -> dict[str, Any]:
    """The benches in a file, by name; none if it does not exist.

    Raises:
        DataError: the file is something else.
    """
    if not path.exists():
        return {}
    with reading(path):
        text = path.read_text(encoding="utf-8")
    try:
        return dict(json.loads(text)["benches"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a file of `flowzoo bench --out`: {error}.") from error


def write_benches(path: Path, benches: dict[str, Any]) -> None:
    """Write them, in the order of their names."""
    text = json.dumps({"benches": dict(sorted(benches.items()))}, indent=1, ensure_ascii=False)
    short = _NUMBERS.sub(lambda match: f"[{' '.join(match[1].split())}]", text)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, short + "\n")


def command_of(name: str, plan: Plan) -> str:
    """What repeats it."""
    usual = Plan()
    said = [f"--rounds {plan.rounds}"] if plan.rounds != usual.rounds else []
    said += [f"--scale {plan.scale:g}"] if plan.scale != usual.scale else []
    said += [f"--{option} …" for option, reader in WITH.items() if name == reader]
    return " ".join(["flowzoo bench", name, *said])


def run_bench(
    name: str,
    measure: Measure,
    plan: Plan,
    wait: float,
    say: Callable[[Row], None],
    keep: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Measure one bench; `say` gets every row and `keep` all that is known, as they come."""
    before = wait_until_quiet(wait)
    found: dict[str, Any] = {
        "command": command_of(name, plan),
        "rounds": plan.rounds,
        "scale": plan.scale,
        "machine": machine_facts(),
        "others_before": before,
        "load_before": load(),
        "rows": [],
    }
    others, began = Others.watch(), time.perf_counter()
    for row in measure(plan):
        found["rows"].append(row)
        found["seconds"] = digits(time.perf_counter() - began)
        found["others_during"] = others.cores()
        found["load_after"] = load()
        say(row)
        keep(found)
    return found


def rows_of(found: dict[str, Any], case: str) -> Sequence[Row]:
    """The rows of a case."""
    return [row for row in found["rows"] if row["case"] == case]
