"""What is said of a command line that cannot be read: one line with the nearest option.

The parser's own messages are boxes that quote options of other commands. Names of commands and
options are looked at before it, which takes no time; of what it says the first sentence is kept.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

from tyro import conf

from flowzoo.errors import UsageError, unknown

GLOBAL = ("help", "verbose", "version")
"""Options of every command."""
_COMPLETION = "tyro-"
"""What options of the parser itself begin with: they write completions for shells."""
_BORDER = re.compile(r"\x1b\[[0-9;]*m|[│╭╮╰╯┃]|^ *\||\| *$")
_EDGE = re.compile(r"[╭╰]─")
_RULE = re.compile(r"[─━-]{10,}")


def check_words(
    words: Sequence[str], commands: Iterable[str], options_of: Callable[[str], Any]
) -> str | None:
    """The command that a command line names, or None; its options are then known by name.

    Args:
        words: the command line without the program's name.
        commands: the commands there are.
        options_of: the class of a command's options.

    Raises:
        UsageError: no such command, or no such option of it; the message names the nearest.
    """
    name = next((word for word in words if not word.startswith("-")), None)
    if name is None:
        _check_options(words, {one: one for one in GLOBAL}, "flowzoo")
        return None
    if name not in commands:
        raise unknown("command", name, commands)
    options = options_of(name)
    rest = [word for word in words if not word.startswith("-")][1:]
    known = {one: one for one in GLOBAL}
    kinds = list(_option_classes(options, rest[:1]))
    for kind in kinds:
        known |= option_names(kind)
    command = " ".join(["flowzoo", name, *(rest[:1] if len(kinds) > 1 else [])])
    _check_options(words, known, command)
    _check_values(words)
    return name


def option_names(kind: Any) -> dict[str, str]:
    """Every way to write an option of a dataclass of options, to how its name is written."""
    found: dict[str, str] = {}
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        inner = _dataclass_in(hint)
        if inner is not None:
            found |= option_names(inner)
        elif not _is_positional(hint):
            given = [getattr(one, "name", None) for one in get_args(hint)[1:]]
            name = next((one for one in given if one), field.name).replace("_", "-")
            found[name] = name
            if field.default is True:
                del found[name]
                found[f"no-{name}"] = f"no-{name}"
    return found


def _option_classes(options: Any, rest: Sequence[str]) -> Iterator[Any]:
    """The classes whose options count: of a command with commands of its own, that one's too."""
    yield options
    for hint in typing.get_type_hints(options, include_extras=True).values():
        for inner in _subcommands(hint):
            named = [getattr(one, "name", None) for one in inner.__metadata__]
            if not rest or rest[0] in named:
                yield get_args(inner)[0]


def _subcommands(hint: Any) -> list[Any]:
    """The members of a union of annotated dataclasses, or none."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    members = [one for one in get_args(hint) if get_origin(one) is Annotated]
    return [one for one in members if dataclasses.is_dataclass(get_args(one)[0])]


def _dataclass_in(hint: Any) -> Any:
    """The dataclass of an annotation, or None."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return hint if dataclasses.is_dataclass(hint) else None


def _is_positional(hint: Any) -> bool:
    return any(one is conf.Positional or "Positional" in repr(one) for one in get_args(hint)[1:])


def _check_options(words: Sequence[str], known: Mapping[str, str], command: str) -> None:
    for word in words:
        if word == "--":
            return
        if not word.startswith("-") or _is_number(word) or word in ("-", "-h"):
            continue
        name = word.lstrip("-").partition("=")[0].replace("_", "-")
        double = word.startswith("--")
        if double and (name in known or name.startswith(_COMPLETION)):
            continue
        near = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
        near = [name] if name in known else near or [one for one in known if one.startswith(name)]
        hint = f" Did you mean {' or '.join(f'--{one}' for one in near[:2])}?" if near else ""
        raise UsageError(
            f"{command} has no option {word.partition('=')[0]}.{hint} `{command} --help` lists all."
        )


def _check_values(words: Sequence[str]) -> None:
    """Refuse empty words: of a path they would be the working folder."""
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        if not word or (option.startswith("--") and equals and not value):
            before = words[place - 1] if not word and place else option
            told = f" after {before}" if before else ""
            raise UsageError(
                f"an empty word on the command line{told}, perhaps of a variable that is not set: "
                "give a value, or leave the option out"
            )


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def one_line(box: str) -> str:
    """What the parser says in a box, as one line."""
    sections: list[list[str]] = [[]]
    for line in box.splitlines():
        text = _BORDER.sub("", line)
        if _RULE.search(text) or _EDGE.search(line):
            sections.append([])
        elif text.strip():
            sections[-1].append(text.strip())
    bodies = [rows for rows in sections if rows]
    if not _EDGE.search(box):  # of ASCII: the title does not stand in the upper edge
        bodies = bodies[1:]
    if not bodies:
        return "the command line cannot be read"
    said, after = " ".join(bodies[0]), bodies[1] if len(bodies) > 1 else []
    for read in (_choice, _value, _missing_value, _missing, _left_over):
        found = read(said, after, bodies[0])
        if found:
            return found
    return re.sub(r"^Error parsing [\w.]+: ", "", said)


def _choice(said: str, after: Sequence[str], rows: Sequence[str]) -> str:
    match = re.match(r"invalid choice '(.*)' for argument '(.*?)'\. Expected one of \((.*)\)", said)
    if match is None:
        return ""
    choices = [one for one in re.findall(r"'([^']*)'", match[3]) if one != "None"]
    return f"{match[2].removeprefix('command.')}: {unknown('choice', match[1], choices)}"


def _value(said: str, after: Sequence[str], rows: Sequence[str]) -> str:
    match = re.match(r"Error parsing (--[\w-]+): (.*)", said)
    if match is None:
        return ""
    metavar = next((row.partition(" ")[2] for row in after if row.startswith("--")), "")
    kinds = [one for one in metavar.split("|") if one not in ("{None}", "")]
    told = {"INT": "a whole number", "FLOAT": "a number"}
    wanted = " or ".join(told.get(kind, kind) for kind in kinds)
    got = re.findall(r"'([^']*)'", match[2].partition("Got errors")[0])
    if not wanted or not got:
        return f"{match[1]}: {match[2]}"
    return f"{match[1]} takes {wanted}, got {got[-1]!r}."


def _missing_value(said: str, after: Sequence[str], rows: Sequence[str]) -> str:
    match = re.match(r"Missing value for argument '(.*?)'\. Expected (\d+) values", said)
    if match is None:
        return ""
    return f"{match[1]} needs {'a value' if match[2] == '1' else f'{match[2]} values'}."


def _missing(said: str, after: Sequence[str], rows: Sequence[str]) -> str:
    match = re.match(r"Missing from (flowzoo[\w ]*):", said)
    if match is None:
        return ""
    needed: list[list[str]] = [[]]  # of each what to write, then what that is
    for row in rows[1:]:
        needed[-1].append(row.removesuffix("(required)").rstrip())
        if row.endswith("(required)"):
            needed.append([])
    told = [f"{name}: {' '.join(what).rstrip('.')}" for name, *what in filter(None, needed)]
    return f"{match[1]} needs {'; '.join(told)}. `{match[1]} --help` tells more."


def _left_over(said: str, after: Sequence[str], rows: Sequence[str]) -> str:
    match = re.match(r"Unrecognized options: (.*)", said)
    if match is None:
        return ""
    known = " ".join(after)
    further = f" {known}." if known.startswith("Available") else ""
    return f"unexpected on the command line: {match[1]}.{further}"
