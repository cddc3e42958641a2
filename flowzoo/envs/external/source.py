"""Where environments come from: a function named on the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from flowzoo.envs.external.text_env import TextEnv
from flowzoo.envs.settings import Setting
from flowzoo.errors import UsageError
from flowzoo.functions import load_function


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
        function = _maker(self.spec)
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


@cache
def _maker(spec: str) -> Callable[..., Any]:
    """The function that a spec names: one and the same for all episodes of a process."""
    return load_function("--env", spec).function
