"""Names of runs on external boards, and settings without credentials."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowzoo.files import read_json, write_json

_URL = re.compile(r"([a-z][a-z0-9+.-]*://)(?:[^/?#\s]*@)?([^?#\s]*)\S*", re.IGNORECASE)
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_.-]+")


def public(value: Any) -> Any:
    """Remove user, password, query and fragment from URLs in settings.

    Tuples become lists, as in JSON.
    """
    if isinstance(value, str):
        return _URL.sub(r"\1\2", value)
    if isinstance(value, Mapping):
        return {str(name): public(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [public(inner) for inner in value]
    return value


def named_run(root: Path, file: str, project: str) -> str:
    """Return the id of the run in `root` on a board, by project; a new one is stored in `file`.

    It is the folder's name and a random part, so that a new run in a deleted folder is another run.
    """
    path = root / file
    ids: dict[str, str] = read_json(path) if path.exists() else {}
    if project not in ids:
        name = _NOT_IN_IDS.sub("-", root.resolve().name)[:50]
        ids[project] = f"{name}-{secrets.token_hex(4)}"
        write_json(path, ids)
    return ids[project]
