"""Where environments come from: a function named on the command line."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from flowzoo.envs.external.text_env import TextEnv
from flowzoo.envs.settings import Setting
from flowzoo.errors import UsageError
from flowzoo.seeding import key_digest

FORM = "package.module:function or path/to/file.py:function"


@dataclass(frozen=True)
class EnvSource:
    """A function that makes an environment, by name, with its options: plain values."""

    spec: str
    """`package.module:function`, or `path/to/file.py:function`."""
    options: tuple[tuple[str, Setting], ...] = ()
    """Keyword arguments of the function."""

    @property
    def label(self) -> str:
        """The name with the options, for people."""
        words = ", ".join(f"{name}={value}" for name, value in self.options)
        return f"{self.spec}({words})"

    def make(self) -> TextEnv:
        """A fresh environment.

        Raises:
            UsageError: no such function, options that it does not take, or it returned no AEC
                environment.
        """
        function = load_function(self.spec)
        options: dict[str, Any] = dict(self.options)
        try:
            inspect.signature(function).bind(**options)
        except TypeError as error:
            raise UsageError(
                f"{self.spec} cannot be called with the options given: {error}; it takes "
                f"{inspect.signature(function)}, and the workflow around it credit, illegal, "
                "max_steps and format_penalty"
            ) from error
        made = function(**options)
        if isinstance(made, TextEnv):
            return made
        try:
            return TextEnv(made)
        except UsageError as error:
            raise UsageError(f"{self.spec}: {error}") from error


def load_function(spec: str) -> Callable[..., Any]:
    """The function that a spec names; a file is imported once in a process.

    Raises:
        UsageError: a spec of another form, no such module or file, an error in importing it, or
            nothing callable under that name.
    """
    place, colon, name = spec.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise UsageError(f"an environment is named as {FORM}, got {spec!r}")
    try:
        module = _file_module(place) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:
        raise UsageError(
            f"cannot import {place!r}: {type(error).__name__}: {error}. Name an environment as "
            f"{FORM}"
        ) from error
    found = getattr(module, name, None)
    if not callable(found):
        here = [one for one in vars(module) if callable(getattr(module, one)) and one[0] != "_"]
        raise UsageError(f"{place} has no function {name!r}; it has {', '.join(sorted(here))}")
    return found


def _file_module(place: str) -> ModuleType:
    """The module of a file, under a name made of its path, so that it is imported only once."""
    path = Path(place).resolve()
    name = f"_flowzoo_env_{path.stem}_{key_digest(str(path)).hex()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {place}")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
