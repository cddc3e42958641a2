"""Functions of the user's own, named in a setting: `module:function` or `path/to/file.py:function`.

Such a function is ordinary code of the user's machine: it runs with the rights of the run and is
trusted as the run's own settings are.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from flowzoo.errors import UsageError


class NamedFunction(NamedTuple):
    """What a setting names."""

    function: Callable[..., Any]
    module: ModuleType
    """Where the name was found."""

    def digest(self) -> str:
        """SHA-256 of the file that the function, or else its module, is written in."""
        try:
            path = inspect.getsourcefile(inspect.unwrap(self.function))
        except TypeError:  # an instance with __call__
            path = None
        path = path or getattr(self.module, "__file__", None)
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""


def load_function(option: str, name: str) -> NamedFunction:
    """The function that `name` says; `option` is the setting, as on the command line.

    A file is imported once in a process, and again when it has changed.

    Raises:
        UsageError: another form, no such module, file or function, or one that raises when it is
            imported.
    """
    where, colon, attribute = name.rpartition(":")
    if not (colon and where and attribute.isidentifier()):
        raise UsageError(
            f"--{option} takes module:function or path/to/file.py:function, got {name!r}."
        )
    if where.endswith(".py") and not Path(where).is_file():
        raise UsageError(f"--{option}: there is no file {where}.")
    try:
        module = _file_module(where) if where.endswith(".py") else importlib.import_module(where)
    except Exception as error:  # whatever the user's module stumbles over
        said = " ".join(str(error).split())
        raise UsageError(
            f"--{option}: importing {where} raised {type(error).__name__}: {said}."
        ) from error
    function = getattr(module, attribute, None)
    if function is None:
        functions = inspect.getmembers(module, inspect.isfunction)
        known = [key for key, one in functions if one.__module__ == module.__name__]
        there = f"; it has {', '.join(known[:8])}" if known else ""
        raise UsageError(f"--{option} {name}: {where} has no {attribute!r}{there}.")
    if not callable(function):
        raise UsageError(f"--{option} {name} is no function, but {type(function).__name__}.")
    return NamedFunction(function, module)


def _file_module(where: str) -> ModuleType:
    """The module of a file, under a name made of its whole path and its text."""
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
