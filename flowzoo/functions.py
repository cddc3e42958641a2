"""Functions and classes of the user's own, named in a setting: `module:NAME` or `file.py:NAME`.

They are ordinary code: it runs with the rights of the run. A command loads what its own words name;
what only a file names, such as a run's record, it loads with `--trust`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from flowzoo.aliases import T
from flowzoo.errors import ExitError, UsageError

C = TypeVar("C")

TRUST = "--trust"
"""Option of the commands that read files which can name code."""


class Permission:
    """The code that a command may load; a script that uses flowzoo may load any."""

    def __init__(self) -> None:
        self._line: Sequence[str] | None = None
        self._texts: dict[str, set[str]] = {}

    @contextmanager
    def of(self, line: Sequence[str]) -> Iterator[None]:
        """Refuse in this block code that files name and `line`, a command line, do not."""
        before = self._line, self._texts
        self._line, self._texts = None if TRUST in line else line, {}
        try:
            yield
        finally:
            self._line, self._texts = before

    @property
    def arguments(self) -> list[str]:
        """Arguments that give this permission to a command that the process starts."""
        return [TRUST] if self._line is None else []

    def note(self, file: str, table: Any) -> None:
        """Note the texts of a file that was read, and of the TOML files that it names."""
        if self._line is None:
            return
        texts = set(_texts(table)) - self._texts.get(file, set())
        self._texts[file] = self._texts.get(file, set()) | texts
        for text in texts:
            named = text.rpartition(":")[2]
            with suppress(OSError, ValueError):  # reported where the file is used
                if named.endswith(".toml") and Path(named).is_file():
                    self.note(named, tomllib.loads(Path(named).read_text("utf-8")))

    def check(self, name: str) -> None:
        """Check that no file names this code, or the command line does, too.

        Raises:
            UsageError: only files name it; the message lists all code that they name.
        """
        files = [file for file, texts in self._texts.items() if any(name in t for t in texts)]
        if not files or self._is_given(name):
            return
        texts = {text.rpartition("=")[2] for texts in self._texts.values() for text in texts}
        others = [text for text in texts - {name} if _source(text) and not self._is_given(text)]
        raise UsageError(
            f"code that {' and '.join(files)} names, and the command line does not, was not "
            f"loaded: {', '.join(map(_with_digest, [name, *sorted(others)]))}. If you trust it, "
            f"repeat the command with {TRUST}"
        )

    def _is_given(self, name: str) -> bool:
        return any(f"={word}".endswith(f"={name}") for word in self._line or ())


PERMISSION = Permission()
"""Permission of this process."""


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)


def _with_digest(name: str) -> str:
    source = _source(name)
    if source is None:
        return name
    return f"{name} ({source}, SHA-256 {hashlib.sha256(source.read_bytes()).hexdigest()[:12]})"


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


class NamedFunction(NamedTuple):
    """A function or class that a setting names."""

    function: Callable[..., Any]
    module: ModuleType
    """Module that has the name."""

    def digest(self) -> str:
        """SHA-256 of the file that the function, or else its module, is written in."""
        try:
            path = inspect.getsourcefile(inspect.unwrap(self.function))
        except TypeError:  # an instance with __call__
            path = None
        path = path or getattr(self.module, "__file__", None)
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""


def call_noted(function: Callable[..., T], name: str, *given: Any) -> T:
    """Call a user's function; its exceptions get a note with its name.

    Raises:
        ExitError: see `call_contained`.
    """
    try:
        return function(*given)
    except KeyboardInterrupt:
        raise
    except Exception as error:
        error.add_note(f"raised by {name}")
        raise
    except BaseException as error:
        raise exit_error(error, name) from error


def call_contained(function: Callable[..., T], name: str, *given: Any) -> T:
    """Call a function that runs a user's code.

    Raises:
        ExitError: the code raised what is no error, such as `SystemExit`, with which a process
            would end as if all were done; an interruption passes.
    """
    try:
        return function(*given)
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise exit_error(error, name) from error


def exit_error(error: BaseException, name: str) -> ExitError:
    """The error, with a note, for an exception that is none and was raised by `name`."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    fault = ExitError(
        f"{error!r:.300} ({Path(frame.filename).name}, line {frame.lineno}, in {frame.name}) ends "
        "no run: raise an ordinary error"
    )
    fault.add_note(f"raised by {name}")
    return fault


class FunctionSetting:
    """A function of a setting; other processes load it by its name."""

    __slots__ = ("digest", "function", "name", "setting")

    def __init__(self, setting: str, name: str) -> None:
        """Load the function."""
        loaded = load_function(setting, name)
        self.setting, self.name = setting, name
        self.function, self.digest = loaded.function, loaded.digest()

    def __call__(self, *given: Any) -> Any:
        """Call the function; its exceptions get a note with its name."""
        return call_noted(self.function, f"{self.setting} {self.name}", *given)

    def __repr__(self) -> str:
        return repr(self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        # By name: only this process has the module of a file.
        return type(self), (self.setting, self.name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FunctionSetting):
            return NotImplemented
        return (self.name, self.digest) == (other.name, other.digest)

    def __hash__(self) -> int:
        return hash((self.name, self.digest))


def load_function(setting: str, name: str) -> NamedFunction:
    """Load the function `name`; messages begin with `setting`.

    Raises:
        UsageError: what `load_named` refuses, or something that cannot be called.
    """
    function, module = load_named(setting, name, "function")
    if not callable(function):
        raise UsageError(f"{setting} {name} must be callable, got {type(function).__name__}.")
    return NamedFunction(function, module)


def load_class(setting: str, name: str, base: type[C]) -> type[C]:
    """Load the subclass `name` of `base`; messages begin with `setting`.

    Raises:
        UsageError: what `load_named` refuses, another object, or a class that lacks methods.
    """
    cls, _ = load_named(setting, name, "Class", base)
    if not (isinstance(cls, type) and issubclass(cls, base)):
        room = ".".join(base.__module__.split(".")[:2])
        raise UsageError(f"{setting} {name} must be a subclass of {room}.{base.__name__}.")
    lacking = sorted(getattr(cls, "__abstractmethods__", ()))
    if lacking:
        raise UsageError(f"{setting} {name} must define {', '.join(lacking)}.")
    return cls


def class_words(setting: str, value: Any) -> str:
    """`module:Class` of a class that a setting was given in place of its name."""
    if not isinstance(value, type):
        raise UsageError(
            f"`{setting}` must be a name, module:Class or a class, got {type(value).__name__} "
            f"{value!r:.60}: settings of a {setting} go into `options` as NAME=VALUE"
        )
    module = sys.modules.get(value.__module__)
    if getattr(module, value.__qualname__, None) is not value:
        raise UsageError(
            f"`{setting}` {value.__qualname__} cannot be found by its name in {value.__module__}, "
            "as a run that goes on must: define the class at the top level of a module"
        )
    return f"{value.__module__}:{value.__qualname__}"


def load_named(
    setting: str, name: str, what: str, base: type | None = None
) -> tuple[Any, ModuleType]:
    """Load a name of a module or file; returns it with the module."""
    # A file is imported once in a process, and again when it has changed.
    where, colon, attribute = name.rpartition(":")
    if not (colon and where and attribute.isidentifier()):
        raise UsageError(f"{setting} takes module:{what} or path/to/file.py:{what}, got {name!r}.")
    if what != "Class" or where.partition(".")[0] != "flowzoo":
        PERMISSION.check(name)
        if os.getcwd() not in sys.path:  # not before: what is there may be a stranger's
            sys.path.append(os.getcwd())
    if where.endswith(".py") and not Path(where).is_file():
        raise UsageError(f"{setting}: there is no file {where}.")
    try:
        module = _file_module(where) if where.endswith(".py") else importlib.import_module(where)
    except (Exception, SystemExit) as error:  # any error of the user's module
        message = " ".join(str(error).split())
        raise UsageError(
            f"{setting}: importing {where} raised {type(error).__name__}: {message}."
        ) from error
    value = getattr(module, attribute, None)
    if value is None:
        names = _own_names(module, base)
        there = f"; it has {', '.join(names[:8])}" if names else ""
        raise UsageError(f"{setting} {name}: {where} has no {attribute!r}{there}.")
    return value, module


def _own_names(module: ModuleType, base: type | None) -> list[str]:
    matches = inspect.isfunction if base is None else inspect.isclass
    return [
        key
        for key, value in inspect.getmembers(module, matches)
        if value.__module__ == module.__name__ and (base is None or issubclass(value, base))
    ]


def _file_module(where: str) -> ModuleType:
    # Under a name made of its whole path and its text.
    path = Path(where).resolve()
    made_of = hashlib.sha256(bytes(path) + b"\0" + path.read_bytes()).hexdigest()
    name = f"flowzoo_named_{path.stem}_{made_of[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
