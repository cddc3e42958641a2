"""The code that a command may load: what its own words name, and what this user has run before.

Code that only files name (a run's record, a TOML file) is listed with its file and digest, and not
loaded without `--trust`. What a command loads is noted in the user's cache folder, by the path and
the content of its file, so that the same code in the same place asks for nothing again.
"""

import hashlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import PathFinder
from itertools import pairwise
from pathlib import Path

from flowzoo.errors import FlowzooError, UsageError
from flowzoo.files import cache_folder, file_digest, read_toml, replace_text

TRUST = "--trust"
"""Option of the commands that read files which can name code."""
_NO_TRUST = "--no-trust"
_REMEDY = f"If you trust it, repeat the command with {TRUST}"


class Permission:
    """The code that a command may load; a script that uses flowzoo may load any."""

    def __init__(self) -> None:
        self._line: Sequence[str] | None = None
        self._is_command = self._has_granted = False
        self._texts: dict[str, set[str]] = {}

    @contextmanager
    def of(self, line: Sequence[str]) -> Iterator[None]:
        """Refuse in this block code that `line`, a command line, does not name."""
        before = self._line, self._texts, self._is_command, self._has_granted
        is_trusted = [word for word in line if word in (TRUST, _NO_TRUST)][-1:] == [TRUST]
        self._line, self._texts = None if is_trusted else line, {}
        self._is_command, self._has_granted = True, False
        try:
            yield
        finally:
            self._line, self._texts, self._is_command, self._has_granted = before

    @property
    def arguments(self) -> list[str]:
        """Arguments that give this permission to a command that the process starts."""
        return [TRUST] if self._line is None else []

    def note(self, file: str, table: object) -> None:
        """Note the texts of a file that was read, and of the TOML files that it names."""
        if not self._is_command:
            return
        texts = set(_texts(table)) - self._texts.get(file, set())
        self._texts[file] = self._texts.get(file, set()) | texts
        for text in texts:
            named = text.rpartition(":")[2]
            with suppress(OSError, FlowzooError):  # reported where the file is used
                if named.endswith(".toml") and Path(named).is_file():
                    self.note(named, read_toml(Path(named)))

    def check(self, name: str) -> None:
        """Check that the command line names this code or command, or that it was run before.

        Raises:
            UsageError: neither; the message lists all code that files name.
        """
        if not self._is_command:
            return
        if self._line is None or self._is_given(name):
            _remember(_key_of_code(name), name)
        elif not _is_known(_key_of_code(name)):
            files = self._files(lambda text: name in text)
            texts = {text.rpartition("=")[2] for texts in self._texts.values() for text in texts}
            others = [text for text in texts - {name} if _source(text) and not self._is_given(text)]
            raise UsageError(
                f"code that {' and '.join(files) or 'a file'} names, and the command line does "
                f"not, was not loaded: {', '.join(map(_with_digest, [name, *sorted(others)]))}. "
                f"{_REMEDY}"
            )

    def check_value(self, setting: str, value: str, effect: str) -> None:
        """Check that the command line gives a setting this value, or only own files do.

        Raises:
            UsageError: another file does; the message says its `effect`.
        """
        is_given = not self._is_command or self._is_set(setting, value)
        files = [] if is_given else self._files(lambda text: _gives(text, value))
        files = [file.partition(", table [")[0] for file in files]
        is_own = bool(files) and all(_is_known(_key_of_file(Path(file))) for file in files)
        if not (is_given or self._line is None or is_own):
            raise UsageError(
                f"{' and '.join(files) or 'a file'} sets {setting} to {value}, and the "
                f"command line does not: {effect}. {_REMEDY}"
            )
        self._has_granted = True
        for file in files if self._line is None else ():
            self.note_own(Path(file))

    def note_own(self, path: Path) -> None:
        """Note that a file with a value that needs permission is this user's own."""
        if self._is_command and self._has_granted:
            _remember(_key_of_file(path), str(path))

    def _files(self, holds: Callable[[str], bool]) -> list[str]:
        # The files that were read in which this holds for a text.
        return [file for file, texts in self._texts.items() if any(map(holds, texts))]

    def _is_set(self, setting: str, value: str) -> bool:
        # `--sandbox unsafe` or `sandbox=unsafe`, no run folder of that name; an address anywhere.
        for before, word in pairwise(["", *(self._line or ())]):
            name, equals, text = word.rpartition("=")
            is_named = name.lstrip("-") == setting if equals else before == f"--{setting}"
            if is_named and Path(text) == Path(value):
                return True
            if "://" in value and _gives(word, value):
                return True
        return False

    def _is_given(self, name: str) -> bool:
        # A file that was read for its settings (FILE or FILE@VARIANT) is not named as code by that.
        read = {Path(file.partition(", table [")[0]) for file in self._texts}
        return any(
            _gives(word, name)
            for word in self._line or ()
            if Path(word.rpartition("=")[2].partition("@")[0]) not in read
        )


PERMISSION = Permission()
"""Permission of this process."""


def _gives(word: str, value: str) -> bool:
    """True of VALUE, NAME=VALUE and, of addresses, MODEL@VALUE."""
    return f"={word}".endswith((f"={value}", f"@{value}"))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)


def _with_digest(name: str) -> str:
    source = _source(name)
    return name if source is None else f"{name} ({source}, SHA-256 {file_digest(source)[:12]})"


def _source(name: str) -> Path | None:
    # The file of module:NAME or file.py:NAME; nothing is imported.
    where, _, attribute = name.rpartition(":")
    origin: str | None = where
    if not where.endswith(".py"):
        folders = [*sys.path, os.getcwd()]
        for part in where.split("."):
            spec = PathFinder.find_spec(part, folders)
            if spec is None:
                return None
            origin, folders = spec.origin, spec.submodule_search_locations or []
    path = Path(origin or "")
    return path if attribute.isidentifier() and path.is_file() else None


def _key_of_code(name: str) -> str:
    # With the path: beside an equal file elsewhere there may be other modules that it imports.
    source = _source(name)
    if source is not None:
        return _key(name.rpartition(":")[2], source)
    parts: list[str] = []
    with suppress(ValueError):
        parts = shlex.split(name)
    return _key(f"{name}\0{os.getcwd()}", *(Path(part) for part in parts if Path(part).is_file()))


def _key_of_file(path: Path) -> str:
    return _key("", path) if path.is_file() else ""


def _key(text: str, *files: Path) -> str:
    parts = [(os.path.realpath(file), file_digest(file)) for file in files]
    return hashlib.sha256(repr((text, parts)).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _is_known(key: str) -> bool:
    return bool(key) and (cache_folder() / "trusted" / key).is_file()


def _remember(key: str, name: str) -> None:
    if not key or _is_known(key):
        return
    with suppress(OSError):  # then the next command asks again
        folder = cache_folder() / "trusted"
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(folder / key, f"{name}\n")
