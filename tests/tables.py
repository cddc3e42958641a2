"""Tables of cases in TOML files beside the tests, and the rows of shared data sets."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(__file__).parents[2] / "shared" / "data"


def read_tables(test_file: str, name: str = "") -> dict[str, Any]:
    """Tables of the file NAME.toml beside a test file, by default of the test file's name."""
    path = Path(test_file)
    return tomllib.loads(path.with_name(f"{name or path.stem}.toml").read_text(encoding="utf-8"))


def readings(tables: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    """Mode, text and what is read: rows of `[read]`, and texts of `[unread]` with None."""
    read = [(mode, *row) for mode, rows in tables["read"].items() for row in rows]
    unread = [(mode, text, None) for mode, texts in tables["unread"].items() for text in texts]
    return [*read, *unread]


def shared_file(name: str) -> Path:
    """A file of `../shared/data`; skips the test where it is absent."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return path


def shared_rows(name: str) -> list[dict[str, Any]]:
    """Rows of a JSON Lines file of `../shared/data`; skips the test where it is absent."""
    return [json.loads(line) for line in shared_file(name).read_text("utf-8").splitlines()]
