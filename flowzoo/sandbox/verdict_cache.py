"""Verdicts of programs seen before, for callers who say that their programs are deterministic."""

from __future__ import annotations

import threading
from collections import OrderedDict

from flowzoo.sandbox.program import Verdict

# Statuses that are kept; TLE depends on how busy the machine was, SE on the sandbox.
KEPT = frozenset({"AC", "WA", "RE", "CE", "MLE", "OLE"})


class VerdictCache:
    """The last verdicts by key; safe from any thread."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: OrderedDict[bytes, Verdict] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: bytes) -> Verdict | None:
        """The verdict under `key`, if it is still there."""
        with self._lock:
            verdict = self._known.get(key)
            if verdict is not None:
                self._known.move_to_end(key)
            return verdict

    def put(self, key: bytes, verdict: Verdict) -> None:
        """Keep a verdict, unless its status depends on more than the program."""
        if verdict.status not in KEPT:
            return
        with self._lock:
            self._known[key] = verdict
            self._known.move_to_end(key)
            while len(self._known) > self._size:
                self._known.popitem(last=False)
