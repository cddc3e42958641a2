"""Answers of endpoints and judges that are kept on disk."""

import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

from flowzoo.errors import DataError, SaveError
from flowzoo.waits import LOCKS

LOCKED_S = 60.0
"""Most seconds for the lock of the file, which another process may hold."""


class AnswerCache:
    """Answers by a digest of what was asked, in a SQLite file; the first one to a request stands.

    Several processes may use one file, and a killed one leaves it whole. Answers are JSON.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(
                path, timeout=LOCKED_S, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.OperationalError) as error:
            raise SaveError(f"{path} cannot be opened as a cache of answers: {error}") from error
        self._execute("PRAGMA synchronous = OFF")  # the process may die, not the machine
        self._execute(
            "CREATE TABLE IF NOT EXISTS answers (digest BLOB PRIMARY KEY, answer TEXT NOT NULL)"
        )

    def get(self, request: object) -> Any:
        """The answer to a request, both JSON values; None: it is not there."""
        query = "SELECT answer FROM answers WHERE digest = ?"
        row = self._execute(query, _digest(request)).fetchone()
        return None if row is None else json.loads(row[0])

    def put(self, request: object, answer: object) -> None:
        """Keep an answer, unless there is one."""
        query = "INSERT OR IGNORE INTO answers VALUES (?, ?)"
        self._execute(query, _digest(request), json.dumps(answer))

    def _execute(self, query: str, *values: bytes | str) -> sqlite3.Cursor:
        try:
            with LOCKS.wait(f"the lock of {self.path}", limit_s=LOCKED_S):
                return self._file.execute(query, values)
        except sqlite3.OperationalError as error:
            raise SaveError(f"{self.path} cannot be read or written: {error}") from error
        except sqlite3.DatabaseError as error:
            raise DataError(
                f"{self.path} is no cache of answers ({error}): move the file away, or name another"
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _digest(request: object) -> bytes:
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode("ascii")).digest()
