"""Functions and classes of the user's own, named in a setting: `module:NAME` or `file.py:NAME`.

They are ordinary code that runs with the rights of the run; `flowzoo.permission` says which of them
a command may load.
"""

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from flowzoo.aliases import T
from flowzoo.errors import ExitError, UsageError
from flowzoo.permission import PERMISSION

C = TypeVar("C")


def call_noted(function: Callable[..., T], name: str, *given: object) -> T:
    """Call a user's function; its exceptions get a note with its name.

    Raises:
        ExitError: see `call_contained`.
    """
    try:
        return call_contained(function, name, *given)
    except Exception as error:
        note = f"raised by {name}"
        if note not in getattr(error, "__notes__", ()):  # as an ExitError has it
            error.add_note(note)
        raise


def call_contained(function: Callable[..., T], name: str, *given: object) -> T:
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
    source = f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}"
    fault = ExitError(f"{error!r:.300} ({source}) ends no run: raise an ordinary error")
    fault.add_note(f"raised by {name}")
    return fault


class FunctionSetting:
    """A function of a setting; other processes load it by its name.

    Raises:
        UsageError: what `load_named` refuses, or something that cannot be called.
    """

    function: Callable[..., Any]
    digest: str
    """SHA-256 of the file that the function, or else its module, is written in; kept in `run.json`,
    so that a run does not continue with a changed function."""

    def __init__(self, setting: str, name: str) -> None:
        self.setting, self.name = setting, name
        self.function, module = load_function(setting, name)
        self.digest = _source_digest(self.function, module)

    def __call__(self, *given: object) -> Any:
        """Call the function; its exceptions get a note with its name."""
        return call_noted(self.function, f"{self.setting} {self.name}", *given)

    def __repr__(self) -> str:
        return repr(self.name)

    def __reduce__(self) -> tuple[object, ...]:
        # By name: only this process has the module of a file.
        return type(self), (self.setting, self.name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FunctionSetting):
            return NotImplemented
        return (self.name, self.digest) == (other.name, other.digest)

    def __hash__(self) -> int:
        return hash((self.name, self.digest))


def load_function(
    setting: str, name: str, *, permitted: bool = False
) -> tuple[Callable[..., Any], ModuleType]:
    """Load the function `name`, and its module; messages begin with `setting`.

    `permitted`: see `load_named`.

    Raises:
        UsageError: what `load_named` refuses, or something that cannot be called.
    """
    function, module = load_named(setting, name, "function", permitted=permitted)
    if not callable(function):
        raise UsageError(f"{setting} {name} must be callable, got {type(function).__name__}.")
    return function, module


def _source_digest(function: Callable[..., object], module: ModuleType) -> str:
    try:
        path = inspect.getsourcefile(inspect.unwrap(function))
    except TypeError:  # an instance with __call__
        path = None
    path = path or getattr(module, "__file__", None)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""


def load_class(setting: str, name: str, base: type[C], *, permitted: bool = False) -> type[C]:
    """Load the subclass `name` of `base`; messages begin with `setting`.

    `permitted`: see `load_named`.

    Raises:
        UsageError: what `load_named` refuses, another object, or a class that lacks methods.
    """
    cls, _ = load_named(setting, name, "Class", base, permitted=permitted)
    if not (isinstance(cls, type) and issubclass(cls, base)):
        room = ".".join(base.__module__.split(".")[:2])
        raise UsageError(f"{setting} {name} must be a subclass of {room}.{base.__name__}.")
    lacking = sorted(getattr(cls, "__abstractmethods__", ()))
    if lacking:
        raise UsageError(f"{setting} {name} must define {', '.join(lacking)}.")
    return cls


def class_words(setting: str, value: object) -> str:
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
    setting: str, name: str, what: str, base: type | None = None, *, permitted: bool = False
) -> tuple[Any, ModuleType]:
    """Load a name of a module or file; returns it with the module.

    `permitted`: an installed package names it, or code that was loaded.
    """
    # A file is imported once in a process, and again when it has changed.
    where, colon, attribute = name.rpartition(":")
    if not (colon and where and attribute.isidentifier()):
        raise UsageError(f"{setting} takes module:{what} or path/to/file.py:{what}, got {name!r}.")
    is_own = what == "Class" and where.partition(".")[0] == "flowzoo"  # module, not a file so named
    if not permitted and (not is_own or where.endswith(".py")):
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
    members = inspect.getmembers(module, inspect.isclass if base else inspect.isfunction)
    members = [(key, value) for key, value in members if value.__module__ == module.__name__]
    return [key for key, value in members if base is None or issubclass(value, base)]


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
