"""Command lines from dataclasses: fields are arguments, and their docstrings are the help.

`max_tokens: int = 64` is read from `--max-tokens 64`, a bool from `--json` or `--no-json`, a tuple
from several values and a `Literal` from its choices; `X | None` also accepts the word None, and
`ByPolicy[X]` POLICY=X words beside or in place of an X. A dataclass field is a group of options.
`field(metadata=...)` makes an argument positional (`{"positional": "NAME"}`), renames its option
(`{"option": "with"}`) or names those fields of a group that the command refuses (`{"refused":
("data",)}`), which help leaves out.
"""

import argparse
import ast
import difflib
import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from flowzoo.declared import (
    choices_of,
    declared_types,
    describe,
    members_of,
    read_text,
    takes_words,
)
from flowzoo.errors import UsageError, hint_at, unknown

METAVARS = {int: "INT", float: "FLOAT", Path: "PATH", str: "TEXT"}
_WIDEST = 100
"""Most columns of help, since longer lines are hard to read."""
_LONGEST_CHOICES = 40
"""Most characters of choices next to an option; longer lists follow its help."""


@dataclass(frozen=True, slots=True)
class Common:
    """Options of every command."""

    help: bool = False
    """Show this help and exit."""
    verbose: bool = False
    """Log what happens to stderr, and show the traceback of an error."""
    version: bool = False
    """Print the version and exit."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A field of a dataclass as an argument of a command line."""

    name: str
    label: str
    """`--max-tokens`, or the name of a positional argument in the usage line."""
    kind: Any
    """Type of a value."""
    default: Any
    """MISSING if the argument is required."""
    owner: type
    """Class that declares the field."""
    takes_words: bool = False
    """True if POLICY=VALUE words may follow or replace the value (`ByPolicy`)."""
    is_refused: bool = False
    """True if the command refuses it."""

    @property
    def kinds(self) -> tuple[Any, ...]:
        """Types of a value; with NoneType, None is accepted."""
        return members_of(self.kind)

    @property
    def is_option(self) -> bool:
        """True for an option, False for a positional argument."""
        return self.label.startswith("--")

    @property
    def is_flag(self) -> bool:
        """True for an option without a value."""
        return self.kinds == (bool,)

    @property
    def tuple_kinds(self) -> tuple[Any, ...]:
        """Types in a tuple, including `...`; empty for a single value."""
        return next((get_args(kind) for kind in self.kinds if get_origin(kind) is tuple), ())

    @property
    def nargs(self) -> int | str | None:
        """Number of values, in the format of argparse."""
        if self.tuple_kinds:
            return "*" if ... in self.tuple_kinds else len(self.tuple_kinds)
        return None if self.is_option else "?"

    @property
    def choices(self) -> tuple[Any, ...]:
        """Values of its `Literal`; empty for other types."""
        return next(filter(None, map(choices_of, (self.kind, *self.tuple_kinds))), ())

    @property
    def metavar(self) -> str:
        """Placeholder of a value in help and messages."""
        if self.is_flag:
            return ""
        if not self.is_option:
            return self.label
        if self.choices:
            return f"{{{','.join(map(str, self.choices))}}}"
        return METAVARS[next(iter(self.tuple_kinds or self.kinds))]

    @property
    def shown_label(self) -> str:
        """The option that changes the default: `--no-x` for a flag that is True."""
        is_on = self.is_flag and self.default is True
        return self.label.replace("--", "--no-", 1) if is_on else self.label

    @property
    def usage(self) -> str:
        """An option with its placeholder, or the name of a positional argument."""
        return f"{self.label} {self.metavar}" if self.is_option else self.label

    @property
    def help(self) -> str:
        """Docstring of the field as one paragraph."""
        text = " ".join(field_docs(self.owner).get(self.name, "").split())
        return f"{text} POLICY=VALUE: of individual policies." if self.takes_words else text

    def read(self, given: Any) -> Any:
        """Convert argparse's result to a value of the field."""
        if isinstance(given, bool):
            return given
        if isinstance(given, str):
            return self._value(given, self.kind)
        if self.takes_words:
            plain = [text for text in given if "=" not in text][-1:]  # the last, as of any option
            value = [self._value(text, self.kind) for text in plain]
            texts = (*plain, *(text for text in given if "=" in text))
            return texts if len(texts) > len(plain) else value[0]
        if len(given) == 1 and self.kinds[0] in (int, float):  # or a tuple of NAME=NUMBER
            with suppress(ValueError):
                return self.kinds[0](given[0])
        return tuple(self._value(text, self.tuple_kinds[0]) for text in given)

    def _value(self, text: str, kind: object) -> Any:
        try:
            return read_text(text, kind)
        except ValueError:
            if self.choices:
                label = self.label if self.is_option else self.name
                reason = f"{label}: {unknown('choice', text, self.choices)}"
            else:
                reason = f"{self.label} takes {describe(kind)}, got {text!r}."
            raise UsageError(reason) from None


def field_docs(cls: type) -> Mapping[str, str]:
    """Docstrings below the fields of a class, by field, from the source."""
    return _docs_of_module(cls.__module__)[cls.__qualname__]


@cache
def _docs_of_module(name: str) -> Mapping[str, Mapping[str, str]]:
    return dict(_class_docs(ast.parse(inspect.getsource(sys.modules[name])), ""))


def _class_docs(block: ast.AST, prefix: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Docstrings of fields, of each class in a block by its qualified name."""
    for statement in ast.iter_child_nodes(block):
        if isinstance(statement, ast.ClassDef):
            yield (
                f"{prefix}{statement.name}",
                {
                    field.target.id: str(text.value.value)
                    for field, text in pairwise(statement.body)
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
                    if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
                },
            )
            yield from _class_docs(statement, f"{prefix}{statement.name}.")
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _class_docs(statement, f"{prefix}{statement.name}.<locals>.")
        elif isinstance(statement, ast.stmt):
            yield from _class_docs(statement, prefix)


def arguments_of(options: type, defaults: object = None) -> list[Argument]:
    """Arguments of a dataclass, including nested ones; `defaults` is an instance."""
    hints, arguments = get_type_hints(options), list[Argument]()
    declared = declared_types(options)
    for field in fields(options):
        default, hint = _default(field, defaults), hints[field.name]
        if is_dataclass(hint):
            refused = field.metadata.get("refused", ())
            arguments += [
                replace(inner, is_refused=inner.name in refused)
                for inner in arguments_of(hint, default)  # type: ignore[arg-type] - a class
            ]
            continue
        label = field.metadata.get("positional")
        if label is None:
            label = f"--{field.metadata.get('option', field.name).replace('_', '-')}"
        owner = next(
            base for base in options.__mro__ if field.name in vars(base).get("__annotations__", ())
        )
        arguments.append(
            Argument(field.name, label, hint, default, owner, takes_words(declared[field.name]))
        )
    return arguments


def _default(field: Field[Any], defaults: object) -> Any:
    if defaults is not None:
        return getattr(defaults, field.name)
    return field.default if field.default_factory is MISSING else field.default_factory()


def parse_words(arguments: Iterable[Argument], line: Sequence[str], command: str) -> dict[str, Any]:
    """Parse the values on a command line, by field."""
    _check_empty(line)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    by_name = {argument.name: argument for argument in arguments}
    for argument in by_name.values():
        _add(parser, argument)
    try:
        given, rest = parser.parse_known_intermixed_args(
            _repeat_options([_with_dashes(word) for word in line], by_name.values())
        )
    except argparse.ArgumentError as error:
        raise UsageError(_count_message(error, by_name.values())) from None
    for word in rest:
        if word.startswith("-"):
            raise _unknown_option(word, by_name.values(), command)
    if rest:
        raise UsageError(f"unexpected on the command line: {', '.join(rest)}.")
    return {name: by_name[name].read(value) for name, value in vars(given).items()}


def _add(parser: argparse.ArgumentParser, argument: Argument) -> None:
    # Absent from the result unless it is given.
    name, absent = argument.name, argparse.SUPPRESS
    if argument.is_flag:
        short = ["-h"] if name == "help" else []
        parser.add_argument(*short, argument.label, dest=name, action="store_true", default=absent)
        negative = argument.label.replace("--", "--no-", 1)
        parser.add_argument(negative, dest=name, action="store_false", default=absent)
    elif argument.is_option:
        # `--options a=1 --options b=2` has two values, as `--options a=1 b=2`.
        count, action = argument.nargs, "append" if argument.takes_words else "store"
        action = "extend" if count == "*" else action
        parser.add_argument(argument.label, dest=name, nargs=count, default=absent, action=action)
    else:
        parser.add_argument(name, nargs=argument.nargs, default=absent)


def _with_dashes(word: str) -> str:
    option, equals, value = word.partition("=")
    return option.replace("_", "-") + equals + value if word.startswith("--") else word


def _repeat_options(line: Sequence[str], arguments: Iterable[Argument]) -> list[str]:
    # `--lr 1e-3 judge=1e-4 voting` becomes `--lr 1e-3 --lr judge=1e-4 voting`: only NAME=VALUE
    # words go on with an option, so that a workflow may follow.
    labels, option, repeated = {a.label for a in arguments if a.takes_words}, "", list[str]()
    for before, word in zip(["", *line], line, strict=False):
        if word.startswith("-"):
            option = label if (label := word.partition("=")[0]) in labels else ""
        elif before != option:  # its first value is there
            option = option if "=" in word else ""
            repeated += [option] if option else []
        repeated.append(word)
    return repeated


def _check_empty(line: Sequence[str]) -> None:
    # As a path, an empty argument would be the working folder.
    for index, word in enumerate(line):
        option, equals, value = word.partition("=")
        if not word or (option.startswith("--") and equals and not value):
            before = line[index - 1] if not word and index else option
            after = f" after {before}" if before else ""
            raise UsageError(
                f"an empty argument on the command line{after}, perhaps from an unset variable: "
                "give a value, or leave the option out"
            )


def _count_message(error: argparse.ArgumentError, arguments: Iterable[Argument]) -> str:
    # argparse only detects a wrong number of values.
    counts = {argument.label: argument.nargs for argument in arguments if not argument.is_flag}
    label = error.argument_name
    if label not in counts:
        return f"{label} takes no value: leave it out."
    return f"{label} needs {f'{counts[label]} values' if counts[label] else 'a value'}."


def _unknown_option(word: str, arguments: Iterable[Argument], command: str) -> UsageError:
    names = [argument.shown_label[2:] for argument in arguments if argument.is_option]
    written = word.partition("=")[0]
    name = written.lstrip("-").replace("_", "-")
    near = [name] if name in names else difflib.get_close_matches(name, names, n=2, cutoff=0.75)
    near = near or [other for other in names if len(name) > 1 and other.startswith(name)][:2]
    hint = f" Did you mean {' or '.join(f'--{other}' for other in near)}?" if near else ""
    if elsewhere := hint_at("option", name, names):
        hint = elsewhere
    elif not near and "options" in names:
        setting = name.replace("-", "_")
        hint = f" A setting of the workflow or the task is given as --options {setting}=VALUE."
    return UsageError(f"{command} has no option {written}.{hint} `{command} --help` lists all.")


def check_given(arguments: Iterable[Argument], values: Mapping[str, object], command: str) -> None:
    """Raise `UsageError` if a required argument has no value; the message describes it."""
    missing = [
        f"{argument.usage}: {argument.help.rstrip('.')}"
        for argument in arguments
        if argument.default is MISSING and argument.name not in values
    ]
    if missing:
        raise UsageError(f"{command} needs {'; '.join(missing)}. See `{command} --help`.")


def build(options: type, values: Mapping[str, Any], defaults: Any = None) -> Any:
    """Make a dataclass instance from values by field; `defaults` has the other values."""
    hints, changes = get_type_hints(options), dict[str, Any]()
    for field in fields(options):
        if is_dataclass(hints[field.name]):
            inner = _default(field, defaults)
            changes[field.name] = build(hints[field.name], values, inner)  # type: ignore[arg-type]
        elif field.name in values:
            changes[field.name] = values[field.name]
    return options(**changes) if defaults is None else replace(defaults, **changes)


def read_arguments(options: type, description: str | None = None) -> Any:
    """Read `options` from the command line of a script; exit after help or an error."""
    arguments, command = [*arguments_of(options), *arguments_of(Common)[:1]], Path(sys.argv[0]).name
    try:
        values = parse_words(arguments, sys.argv[1:], command)
        if values.pop("help", False):
            print(help_text(command, description or options.__doc__ or "", arguments), end="")
            raise SystemExit(0)
        check_given(arguments, values, command)
        return build(options, values)
    except UsageError as error:
        raise SystemExit(f"error: {error}") from None


def help_text(
    command: str,
    description: str,
    arguments: Sequence[Argument],
    commands: Mapping[str, str] | None = None,
) -> str:
    """Help of a command in the terminal's width; options are grouped by class."""
    arguments = [argument for argument in arguments if not argument.is_refused]
    width = min(shutil.get_terminal_size().columns - 2, _WIDEST)
    column = 24 if width > 70 else 10
    usage = [command, *(["COMMAND"] if commands else []), "[OPTIONS]"]
    usage += [argument.label for argument in arguments if not argument.is_option]
    required = [argument for argument in arguments if argument.default is MISSING]
    usage += [argument.usage for argument in required if argument.is_option]
    parser = argparse.ArgumentParser(
        usage=" ".join(usage),
        add_help=False,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, 2, column, width),
    )
    parser.description = "\n\n".join(
        textwrap.fill(" ".join(part.split()), width) for part in description.split("\n\n")
    )
    if commands:
        group = parser.add_argument_group("commands")
        for name, purpose in commands.items():
            group.add_argument(name, help=_escape(purpose.partition("\n")[0]))
    titles = [_title(argument, description) for argument in arguments]
    first = sorted(dict.fromkeys(titles), key=lambda title: title not in ("arguments", "options"))
    groups = {title: parser.add_argument_group(title) for title in first}
    for title, argument in zip(titles, arguments, strict=True):
        _add_help(groups[title], argument)
    return parser.format_help()


def _title(argument: Argument, description: str) -> str:
    if not argument.is_option:
        return "arguments"
    text = argument.owner.__doc__ or "Options"
    if argument.owner.__name__ == "Options" or text == description:
        return "options"
    return text.partition("\n")[0].rstrip(".")


def _add_help(group: Any, argument: Argument) -> None:
    text, metavar = argument.help, argument.metavar
    if argument.choices and len(metavar) > _LONGEST_CHOICES:
        text += f" Choices: {', '.join(map(str, argument.choices))}."
        metavar = "CHOICE"
    default = argument.default
    if default is not MISSING and default not in (None, "", ()) and not argument.is_flag:
        values = default if isinstance(default, tuple) else (default,)
        texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
        # A command's or a file's own default takes the place of the one in the docstring.
        text = re.sub(r"[;.] [Dd]efault: .*", ".", text) + f" (default: {' '.join(texts)})"
    if argument.is_flag:
        short = ["-h"] if argument.name == "help" else []
        group.add_argument(*short, argument.shown_label, action="store_true", help=_escape(text))
    elif argument.is_option:
        sizes = {"nargs": argument.nargs, "metavar": metavar}
        group.add_argument(argument.label, help=_escape(text), **sizes)
    else:
        group.add_argument(argument.name, metavar=metavar, help=_escape(text))


def _escape(text: str) -> str:
    return text.replace("%", "%%")  # argparse replaces %(name)s
