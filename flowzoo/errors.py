"""What flowzoo raises, and how it words it.

A user's mistake gets an exception at once that says what was expected, what came and what to do;
a model's output never raises. Every exception of the package is one of these or a builtin.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from flowzoo import extras


class FlowzooError(Exception):
    """Base of the package's own exceptions."""

    reported_elsewhere = False
    """Whether another process of the same run says it."""


class UsageError(FlowzooError, ValueError):
    """A wrong argument, name or file: the message names the valid choices or the remedy."""


class MissingExtraError(FlowzooError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


class DataError(FlowzooError, ValueError):
    """A data file does not have the layout it should have; the message names file and line."""


class SaveError(FlowzooError, OSError):
    """Something could not be written; what was written before it is whole."""


class TaskError(FlowzooError, RuntimeError):
    """A task of somebody's own failed, or gave something that it may not; no reply's fault."""


class RetrieverError(FlowzooError, RuntimeError):
    """A search could not be carried out; an episode never takes this for an observation."""


class DivergedError(FlowzooError, RuntimeError):
    """A replayed script asked something else than it did the first time: `play` is not pure."""


class EnvironmentBusyError(FlowzooError, RuntimeError):
    """An environment was used while an `astep` of it is under way, or by two owners at once."""


def unknown(kind: str, name: object, choices: Iterable[object], further: str = "") -> UsageError:
    """An error for `name`, which is not one of `choices`, with the near matches first.

    `further` says what else would be accepted.
    """
    known = sorted(str(choice) for choice in choices)
    small = {choice.lower(): choice for choice in reversed(known)}
    near = difflib.get_close_matches(str(name).lower(), small, n=3, cutoff=0.6)
    hint = f" Did you mean {' or '.join(repr(small[match]) for match in near)}?" if near else ""
    listing = ", ".join(known) or "(none)"
    more = f"; {further}" if further else ""
    return UsageError(f"unknown {kind} {name!r}.{hint} Valid choices: {listing}{more}.")


def check_choice(kind: str, value: object, choices: Any) -> None:
    """Raise `UsageError` unless `value` is one of `choices`: a `Literal` alias, or a tuple."""
    known = choices if isinstance(choices, tuple) else get_args(choices)
    if value not in known:
        raise unknown(kind, value, known)


def missing_extra(module: str, extra: str, purpose: str) -> MissingExtraError:
    """An error for a module that only the extra `extra` installs."""
    later = "" if extras.PUBLISHED else extras.install_command(extra, published=True)
    more = later and f" (once it is published: {later})"
    return MissingExtraError(
        f"{purpose} needs the module `{module}`: {extras.remedy(extra)}{more}."
    )


def need_module(module: str, purpose: str) -> None:
    """Find out early whether an optional module is installed, without importing it.

    Raises:
        MissingExtraError: it is not.
    """
    if not extras.installed(module):
        raise missing_extra(module, extras.extra_of(module) or module, purpose)


def missing_module(error: ModuleNotFoundError, purpose: str) -> MissingExtraError | None:
    """An error for an import that failed; None unless an extra brings the module and is missing."""
    package = (error.name or "").partition(".")[0]
    extra = extras.extra_of(package)
    if extra is None or extras.installed(package):
        return None
    return missing_extra(package, extra, purpose)


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what caused it, and errors handed over as arguments (urllib3 wraps that way)."""
    seen: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        inner = [item.__cause__, item.__context__, *item.args]
        waiting.extend(one for one in inner if isinstance(one, BaseException))


def errno_of(error: BaseException) -> int | None:
    """The first error number of the operating system in an error and what caused it, or None."""
    numbers = (
        item.errno for item in error_chain(error) if isinstance(item, OSError) and item.errno
    )
    return next(numbers, None)
