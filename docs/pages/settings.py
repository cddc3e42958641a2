"""A page of all settings of a run: type, bounds, default, condition and text of each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, get_args

from annotated_types import Ge, Gt, Le, Lt

from flowzoo.arguments import Argument, arguments_of
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.declared import conditions, declared_types, describe, takes_words, without_words

BOUNDS = {Gt: (">", "gt"), Ge: ("≥", "ge"), Lt: ("<", "lt"), Le: ("≤", "le")}


def settings_page() -> str:
    """The page, in Markdown: a table for every class of settings."""
    lines = [
        "# All settings of a run", "",
        "`flowzoo train --NAME VALUE`, `NAME = VALUE` in a file for `--config`, and "
        "`TrainConfig(NAME=VALUE)` in Python. A default of None is the algorithm's or follows from "
        "the model. [Training](../../training.md) explains them by subject.",
    ]  # fmt: skip
    for owner, arguments in groupby(arguments_of(TrainConfig), lambda argument: argument.owner):
        title = (owner.__doc__ or "").partition("\n")[0].rstrip(".")
        lines += ["", f"## {title}", "", "| setting | value | default | |", "|---|---|---|---|"]
        lines += [row(argument) for argument in arguments]
    return "\n".join([*lines, ""])


def row(argument: Argument) -> str:
    """The row of a setting."""
    kind = declared_types(TrainConfig)[argument.name]
    value = ", ".join([describe(without_words(kind)), *bounds(kind)])
    value += "; or POLICY=VALUE" if takes_words(kind) else ""
    only = conditions(TrainConfig).get(argument.name)
    text = argument.help + (f" A setting {only.subject}." if only else "")
    cells = (f"`{argument.name}`", value, f"`{argument.default!r}`", text)
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def bounds(kind: Any) -> Iterator[str]:
    """Bounds in a declaration, as in a formula."""
    for part in get_args(kind):
        if type(part) in BOUNDS:
            sign, field = BOUNDS[type(part)]
            yield f"{sign} {getattr(part, field):,}"
        yield from bounds(part)
