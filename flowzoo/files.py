"""Files that survive a crash: whole replacements, and JSON Lines whose last line may be torn."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from flowzoo.errors import DataError

JsonRow = TypeVar("JsonRow")


def replace_text(path: Path, text: str) -> None:
    """Write atomically: a reader sees the old file or the new one."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def write_json(path: Path, value: Any) -> None:
    """Write `value` atomically, for people to read and diff."""
    replace_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def read_rows(path: Path, read: Callable[[Any], JsonRow], what: str) -> list[JsonRow]:
    """`read` of every line of a JSON Lines file; none if there is no file.

    A last line that cannot be read is dropped: the process died while writing it.

    Raises:
        DataError: another line cannot be read; the message names it and says it is not `what`.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows: list[JsonRow] = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(read(json.loads(line)))
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines):
                break
            raise DataError(f"{path}, line {number}: not {what} ({error})") from error
    return rows
