"""Exceptions of the package and their messages.

A user's mistake raises at once, with what was expected, what came and the remedy; a model's output
never raises. Every exception is one of these or a builtin.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
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
    """An error for a `name` that is not among `choices`, with near matches.

    `further` names what else is accepted. A name that other libraries use is answered with that of
    this package, by the first word of `kind`; see `hint_at`.
    """
    names = sorted(str(choice) for choice in choices)
    hint = hint_at(kind, str(name), names) or _suggestion(str(name), names)
    listing = ", ".join(names) or "(none)"
    more = f"; {further}" if further else ""
    return UsageError(f"unknown {kind} {name!r}.{hint} Valid choices: {listing}{more}.")


def _suggestion(name: str, names: Sequence[str]) -> str:
    # Versions are left out (`vote` is near `voting_v0`), also where only the beginning is alike.
    small = {re.sub(r"_v\d+$", "", choice.lower()): choice for choice in reversed(names)}
    written = re.sub(r"_v\d+$", "", name.lower())
    near = difflib.get_close_matches(written, small, n=3, cutoff=0.6)
    near = near or [choice for choice in small if len(written) > 2 and choice.startswith(written)]
    return f" Did you mean {' or '.join(repr(small[match]) for match in near)}?" if near else ""


def hint_at(kind: str, name: str, names: Iterable[str]) -> str:
    """A sentence with this package's word for a name of other libraries, or "".

    Args:
        kind: its first word is a table of `hints.toml`; fields of a file are options.
        name: the unknown name.
        names: the known ones; a word that names an option is for commands and files that have it.
    """
    path = Path(__file__).with_name("hints.toml")
    of_file = kind.startswith("field")
    table = tomllib.loads(path.read_text("utf-8")).get("option" if of_file else kind.split()[0], {})
    written = name.replace("_", "-") if of_file else name
    options = {option.replace("_", "-") for option in names}
    for pattern, texts in table.items():
        if not fnmatchcase(written.lower(), pattern):
            continue
        for text in texts if isinstance(texts, list) else [texts]:
            option = re.match(r"--([a-z-]+)", text)
            if option is None or option[1] in options:
                if of_file:
                    text = re.sub(r"--([a-z-]+)", lambda it: it[1].replace("-", "_"), text)
                return f" Here it is {text.format(name=name)}."
    return ""


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
    is_missing = extra is not None and not extras.is_installed(package)
    return missing_extra(package, extra, purpose) if is_missing else None


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
        waiting += [cause for cause in inner if isinstance(cause, BaseException)]


def errno_of(error: BaseException) -> int | None:
    """The first system error number of an error and its causes, or None."""
    chain = (item for item in error_chain(error) if isinstance(item, OSError))
    return next((item.errno for item in chain if item.errno), None)
