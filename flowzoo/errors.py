"""Exceptions of the package and their messages.

A user's mistake raises at once, with what was expected, what came and the remedy; a model's output
never raises. Every exception is one of these or a builtin.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import get_args

from flowzoo import extras


class FlowzooError(Exception):
    """Base of the package's own exceptions."""

    reported_elsewhere = False
    """True if another process of the same run prints it."""


class UsageError(FlowzooError, ValueError):
    """A wrong argument, name or file: the message names the valid choices or the remedy."""


class OptionError(UsageError, TypeError):
    """An option that a workflow and its task do not have, as Python refuses a keyword argument."""


class ChatError(UsageError):
    """Messages that a model's chat template does not take; the message has the template's words."""


class MissingExtraError(FlowzooError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


class DataError(FlowzooError, ValueError):
    """A data file does not have the layout it should have; the message names file and line."""


class SaveError(FlowzooError, OSError):
    """A file could not be written; files written before are complete."""


class TaskError(FlowzooError, RuntimeError):
    """A user-defined task, tool or judge failed or returned an invalid value."""


class ExitError(FlowzooError, RuntimeError):
    """A user's code raised `SystemExit`, or another exception that is no error."""


class RetrieverError(FlowzooError, RuntimeError):
    """A search failed; never shown to an agent as an observation."""


class DivergedError(FlowzooError, RuntimeError):
    """A replayed script differs from its first run: `play` is not deterministic."""


class EnvironmentBusyError(FlowzooError, RuntimeError):
    """An environment was used during its `astep`, or by two owners at once."""


def unknown(kind: str, name: object, choices: Iterable[object], further: str = "") -> UsageError:
    """An error for a `name` that is not among `choices`, with near matches."""
    # `further` names what else is accepted.
    names = sorted(str(choice) for choice in choices)
    small = {choice.lower(): choice for choice in reversed(names)}
    near = difflib.get_close_matches(str(name).lower(), small, n=3, cutoff=0.6)
    hint = f" Did you mean {' or '.join(repr(small[match]) for match in near)}?" if near else ""
    listing = ", ".join(names) or "(none)"
    more = f"; {further}" if further else ""
    return UsageError(f"unknown {kind} {name!r}.{hint} Valid choices: {listing}{more}.")


def check_choice(kind: str, value: object, choices: object) -> None:
    """Raise `UsageError` unless `value` is one of `choices`: a `Literal` alias, or a tuple."""
    allowed = choices if isinstance(choices, tuple) else get_args(choices)
    if value not in allowed:
        raise unknown(kind, value, allowed)


def missing_extra(module: str, extra: str, purpose: str) -> MissingExtraError:
    """An error for a module that only the extra `extra` installs."""
    later = "" if extras.PUBLISHED else extras.install_command(extra, published=True)
    more = later and f" (once it is published: {later})"
    return MissingExtraError(
        f"{purpose} needs the module `{module}`: {extras.remedy(extra)}{more}."
    )


def need_module(module: str, purpose: str) -> None:
    """Check that an optional module is installed, without importing it."""
    if not extras.is_installed(module):
        raise missing_extra(module, extras.extra_of(module) or module, purpose)


def missing_module(error: ModuleNotFoundError, purpose: str) -> MissingExtraError | None:
    """An error for an import that failed; None unless an extra brings the module and is missing."""
    package = (error.name or "").partition(".")[0]
    extra = extras.extra_of(package)
    if extra is None or extras.is_installed(package):
        return None
    return missing_extra(package, extra, purpose)


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """The error, its causes, and errors among its arguments (as urllib3 wraps them)."""
    seen: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        inner = [item.__cause__, item.__context__, *item.args]
        waiting.extend(cause for cause in inner if isinstance(cause, BaseException))


def errno_of(error: BaseException) -> int | None:
    """The first system error number of an error and its causes, or None."""
    numbers = (
        item.errno for item in error_chain(error) if isinstance(item, OSError) and item.errno
    )
    return next(numbers, None)
