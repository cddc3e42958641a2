"""Output of commands that goes into a file, such as the `log.txt` of a matrix's runs."""

import io
import os
import stat
import sys
import threading
from typing import TextIO

from flowzoo.provenance import redact

_LONGEST = 2**16  # characters of a line that has not ended


class RedactedFile(io.TextIOWrapper):
    """A file of text that gets whole lines, in which secrets are replaced."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__(stream.buffer, stream.encoding, stream.errors, line_buffering=True)
        self._original = stream  # which would close the file if it were collected
        self._part = ""
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        """Write the lines that have ended; a secret may come in pieces."""
        with self._lock:
            whole, end, self._part = (self._part + text).rpartition("\n")
            super().write(redact(whole + end))
            if len(self._part) > _LONGEST:
                self.finish()
        return len(text)

    def finish(self) -> None:
        """Write a last line that has no end."""
        with self._lock:
            part, self._part = self._part, ""
            super().write(redact(part))
            self.flush()


def redact_files() -> None:
    """Replace secrets in what is printed where standard streams lead to files."""
    for name in ("stdout", "stderr"):
        stream: TextIO = getattr(sys, name)
        is_system = isinstance(stream, io.TextIOWrapper)  # others may have no descriptor
        if is_system and stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            stream.flush()
            setattr(sys, name, RedactedFile(stream))


def finish_files() -> None:
    """Write what `redact_files` has kept."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, RedactedFile):
            stream.finish()
