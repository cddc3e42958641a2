"""Parsing and validation of settings of workflows and tasks."""

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

from flowzoo.errors import UsageError, unknown
from flowzoo.functions import FunctionSetting

Setting = bool | int | float | str | None


def read_settings(arguments: Sequence[str], option: str = "options") -> dict[str, Setting]:
    """Read NAME=VALUE arguments; a value is a number, true, false, none, or a text."""
    settings: dict[str, Setting] = {}
    for word in arguments:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"{option} must be NAME=VALUE, got {word!r}.")
        if name in settings:
            raise UsageError(f"{option} give {name!r} twice.")
        settings[name] = _value(value)
    return settings


def read_named(
    arguments: Iterable[str],
    names: Iterable[str] | None,
    option: str,
    kind: str = "policy",
    *,
    plain: bool = False,
) -> dict[str, str]:
    """Read NAME=VALUE words, whose names are among `names` (None: any).

    With `plain` one word may be a value alone, for all other names: it has the name "".
    """
    choices = None if names is None else list(names)
    values: dict[str, str] = {}
    for word in arguments:
        name, equals, value = word.partition("=") if "=" in word else ("", "", word)
        if not value or not (equals or plain):
            raise UsageError(f"`{option}` takes {kind.upper()}=VALUE, got {word!r}")
        if equals and choices is not None and name not in choices:
            raise UsageError(f"`{option}`: {unknown(kind, name, choices)}")
        if name in values:
            twice = f"names {kind} {name}" if equals else f"has the value of every {kind}"
            raise UsageError(
                f"`{option}` {twice} twice, with {values[name]} and {value}: leave one out"
            )
        values[name] = value
    return values


def add_setting(settings: dict[str, Any], name: str, value: object, option: str = "") -> None:
    """Add the value of a command's own option to the settings; None leaves it out."""
    if value is None:
        return
    if name in settings:
        option = option or name.replace("_", "-")
        raise UsageError(f"--{option} and --options give {name!r} twice: leave one of them out.")
    settings[name] = value


def add_wording(
    settings: dict[str, Any], prompts: str | None, system: Sequence[str], examples: int | None
) -> None:
    """Add a command's --prompts, --system and --examples to the settings of a workflow."""
    add_setting(settings, "texts", prompts, "prompts")
    add_setting(settings, "system", tuple(system) or None)
    add_setting(settings, "examples", examples)


PROGRAM = "openai_program_v0"
"""Name of the workflow around an agent program."""


def add_program(settings: dict[str, Any], program: str | None) -> None:
    """Add a command's --program to the settings of a workflow; programs have their own prompts."""
    if program is not None:
        add_setting(settings, "run", program, "program")
        settings.setdefault("examples", 0)


def whole(value: Any) -> int | None:
    """`value` as an int if it is an integer of any library such as NumPy; else None."""
    # A bool is an int in Python, but a mistake here.
    if type(value) is int:
        return value
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def check_whole(name: str, value: object, low: int, high: int | None = None) -> None:
    """Raise `UsageError` unless `value` is an integer from `low` to `high` (None: no limit)."""
    number = whole(value)
    if number is None or not low <= number <= (number if high is None else high):
        limits = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise UsageError(f"{name}: expected a whole number {limits}, got {value!r}.")


def check_number(name: str, value: object, low: float, high: float = math.inf) -> None:
    """Raise `UsageError` unless `value` is a finite number within `low`..`high`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high:
        limits = f"of at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        raise UsageError(f"{name}: expected a number {limits}, got {value!r}.")


def check_seed(seed: object) -> int:
    """Return `seed` as an int; integers of any library are valid."""
    number = whole(seed)
    if number is None:
        raise UsageError(f"seed: expected an integer, got {seed!r}.")
    return number


def plain_integers(settings: object) -> None:
    """Convert integers of other libraries in the fields of a frozen dataclass to int."""
    for name, value in vars(settings).items():
        if type(value) is not int and hasattr(value, "__index__") and not isinstance(value, bool):
            number = whole(value)
            if number is not None:
                object.__setattr__(settings, name, number)


def plain_setting(value: object) -> Any:
    """A setting as a plain value; a function by its name, since its repr has an address."""
    if isinstance(value, (str, int, float, bool, tuple)):
        return value
    if isinstance(value, FunctionSetting):
        return f"{value.name} {value.digest}"
    if callable(value):
        named = value if hasattr(value, "__qualname__") else type(value)
        return f"{named.__module__}.{named.__qualname__}"
    return repr(value)


def _value(text: str) -> Setting:
    constants: dict[str, Setting] = {"true": True, "false": False, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text
