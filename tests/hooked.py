"""Functions of a test as the functions that settings name."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def hook(kind: type[Any], function: Callable[..., Any], setting: str = "--option") -> Any:
    """A `kind` of hook whose setting names `function`, which is `f` of the module `m`."""
    module = sys.modules["m"] = ModuleType("m")
    module.f = function  # type: ignore[attr-defined]
    return kind(setting, "m:f")
