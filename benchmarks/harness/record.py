"""Files of results: figures with the command and the machine that measured them."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flowzoo.files import replace_text, writing
from flowzoo.provenance import source_revision, usable_cores, versions

_NUMBERS = re.compile(r'\[\s+([^\[\]{}"]*?)\s+\]')
"""A list of numbers over many lines."""

Row = dict[str, Any]


def machine_facts() -> Row:
    """Facts that figures depend on, without names and paths."""
    return {
        "cores": usable_cores(),
        "processor": _processor(),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": versions(),
        "source": source_revision(),
    }


def _processor() -> str:
    """Model of the processor, or its architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()


def write_results(path: Path, results: Row) -> None:
    """Write JSON with every list of numbers on one line; the folder is created."""
    text = json.dumps(results, indent=1, ensure_ascii=False, default=str)
    short = _NUMBERS.sub(lambda match: f"[{' '.join(match[1].split())}]", text)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, short + "\n")


def write_table(
    path: Path, command: str, columns: Sequence[str], rows: Sequence[Sequence[str]], **more: Any
) -> None:
    """Write a table for `docs/data`: the first column is left-aligned, the others right-aligned."""
    align = f"|---{'|--:' * (len(columns) - 1)}|"
    table = {"command": command, "columns": columns, "align": align, "rows": rows}
    write_results(path, table | more)
