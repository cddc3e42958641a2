"""Values of settings are checked against their declarations, wherever they come from."""

import ast
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np
import pytest
from annotated_types import Ge, Gt, Le, Lt
from hypothesis import given, settings
from hypothesis import strategies as st

import flowzoo
from flowzoo.arguments import arguments_of
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.settings.algorithms import ALGORITHMS
from flowzoo.cli import main
from flowzoo.commands.line import COMMANDS, actions_of, options_of
from flowzoo.declared import (
    ByPolicy,
    Count,
    NonNegative,
    Positive,
    ProperFraction,
    check_declared,
    check_value,
    choices_of,
    declared_types,
    fits,
    read_text,
    without_words,
)
from flowzoo.envs import voting_v0
from flowzoo.envs.tasks import TASKS
from flowzoo.errors import OptionError, UsageError

REQUIRED: Mapping[str, Mapping[str, Any]] = {
    "Endpoint": {"url": "http://localhost:1/v1"},
}
"""Arguments without which a class of settings cannot be made."""


def declared_classes() -> Iterator[type]:
    """Every class of the package whose `__post_init__` calls `check_declared`."""
    root = Path(flowzoo.__file__).parent
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            methods = node.body if isinstance(node, ast.ClassDef) else []
            made = next((it for it in methods if getattr(it, "name", "") == "__post_init__"), None)
            if made is not None and "check_declared(self" in ast.unparse(made):
                parts = path.relative_to(root.parent).with_suffix("").parts
                yield getattr(import_module(".".join(parts)), node.name)  # type: ignore[attr-defined]


CLASSES = [pytest.param(cls, id=cls.__name__) for cls in declared_classes()]
WRONG = (1.5, -1, "nonsense", "3", True, None, math.nan, math.inf, (1.5,), b"1", {}, object())
"""Values of types of which few settings have more than one."""
OUTSIDE = {Gt: ("gt", 0), Ge: ("ge", -1), Lt: ("lt", 0), Le: ("le", 1)}
"""Distance of a value just outside from each bound."""


def bounds(kind: Any) -> Iterator[tuple[Any, int]]:
    """Bounds of a declaration, with a value just outside each."""
    for part in get_args(kind):
        if get_origin(kind) is Annotated and type(part) in OUTSIDE:
            field, distance = OUTSIDE[type(part)]
            yield part, getattr(part, field) + distance
        yield from bounds(part)


def make(cls: type) -> Any:
    return cls(**REQUIRED.get(cls.__name__, {}))


def refusal(settings: Any, **values: Any) -> str:
    """Message that refuses values in place of those of `settings`; empty if none does."""
    try:
        replace(settings, **values)
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("cls", CLASSES)
def test_values_of_another_type_are_refused_by_name(cls):
    settings, count = make(cls), 0
    for name, kind in declared_types(cls).items():
        for value in WRONG:
            if not fits(value, kind):
                message = refusal(settings, **{name: value})
                assert re.match(rf"(`|the ){name}\b", message), (name, value, message)
                assert "\n" not in message
                count += 1
    assert count >= 9 * len(declared_types(cls))


@pytest.mark.parametrize("cls", CLASSES)
def test_values_just_outside_a_bound_are_refused(cls):
    for name, kind in declared_types(cls).items():
        if get_origin(without_words(kind)) is Mapping or "Mapping" in str(kind):
            continue
        for bound, value in bounds(kind):
            given_value = (value, value) if get_origin(kind) is tuple else value
            message = refusal(make(cls), **{name: given_value})
            assert re.match(rf"(`|the ){name}\b[^,]* must be ", message), (name, bound, message)
            assert message.endswith(f"got {value}")


@pytest.mark.parametrize("cls", CLASSES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_legal_values_resolve_or_are_refused_in_a_line(cls, data):
    types = declared_types(cls)
    kinds = {name: kind for name, kind in types.items() if is_drawn(kind)}
    name = data.draw(st.sampled_from(sorted(kinds)))
    value = data.draw(st.from_type(without_words(kinds[name])).filter(is_finite))
    check_value(f"`{name}`", value, kinds[name])
    assert "\n" not in refusal(make(cls), **{name: value})


def is_drawn(kind: Any) -> bool:
    """True for types that Hypothesis draws: numbers, choices and texts."""
    kind = without_words(kind)
    parts = get_args(kind) if get_origin(kind) is not Literal else ()
    return "Mapping" not in str(kind) and all(
        part in (int, float, bool, str, type(None), ...)
        or get_origin(part) in (Literal, Annotated)
        or not isinstance(part, type)
        for part in (kind, *parts)
    )


def is_finite(value: Any) -> bool:
    """True unless a number is NaN or infinite."""
    members = value if isinstance(value, tuple) else (value,)
    return all(math.isfinite(number) for number in members if isinstance(number, float))


@dataclass(frozen=True)
class Inner:
    """Settings in settings."""

    share: ProperFraction = 0.5


@dataclass(frozen=True)
class Settings:
    """One field of each kind of declaration."""

    inner: Inner = Inner()
    count: Count = 1
    rates: tuple[Positive[float], ...] = ()
    pair: tuple[int, int] = (1, 2)
    mode: Literal["fast", "slow"] | None = None
    roles: Mapping[str, NonNegative[float]] | None = None
    rank: ByPolicy[NonNegative[int]] = 0
    path: Path | None = None

    def __post_init__(self) -> None:
        check_declared(self)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"inner": Inner(1.0)}, "`share` must be below 1, got 1.0"),
        ({"count": 2_000_000}, "`count` must be at most 1,000,000, got 2000000"),
        ({"rates": (1.0, 0.0)}, "`rates` must be greater than 0, got 0.0"),
        ({"rates": 1.0}, "`rates` must be a list (a number each), got 1.0"),
        ({"pair": (1,)}, "`pair` must be a list of 2 (a whole number each), got (1,)"),
        ({"mode": "fats"}, "`mode`: unknown choice 'fats'. Did you mean 'fast'? Valid choices"),
        ({"mode": 1}, "`mode` must be one of 'fast', 'slow', got 1"),
        ({"roles": {"a": -1.0}}, "`roles` of 'a' must be at least 0, got -1.0"),
        ({"roles": {"a": "1"}}, "`roles` of 'a' must be a number, got '1'"),
        ({"rank": -1}, "`rank` must be at least 0, got -1"),
        ({"rank": "a=1"}, "`rank` must be a whole number or a list (POLICY=VALUE), got 'a=1'"),
        ({"path": "x"}, "`path` must be Path, got 'x'"),
    ],
)
def test_a_message_says_what_is_expected_and_what_came(values, message):
    assert refusal(Settings(), **values).startswith(message)


def test_a_list_becomes_a_tuple_and_an_integer_an_int():
    made = Settings(rates=[1.0, 2], count=np.int64(3), rank=("a=1",))
    assert made.rates == (1.0, 2)
    assert type(made.count) is int
    assert choices_of(declared_types(Settings)["mode"]) == ("fast", "slow")


def test_words_are_of_runs_only():
    assert "must be a number, got ('a=1',)" in refusal(LearnerConfig(), clip_norm=("a=1",))


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("3", Positive[int], 3), ("1e-3", ByPolicy[float | None], 1e-3),
        ("None", float | None, None), ("None", str, "None"), ("b", Literal["a", "b"], "b"),
        ("2", Literal[1, 2], 2),
        ("a", Literal["a"] | None, "a"), ("4", int | tuple[str, ...], 4),
    ],
)  # fmt: skip
def test_a_word_is_read_by_the_declared_type(text, kind, value):
    read = read_text(text, kind)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("x", int),
        ("1.5", int),
        ("None", float),
        ("c", Literal["a", "b"]),
        ("1", Literal["a"] | None),
    ],
)  # fmt: skip
def test_a_word_of_another_type_is_no_value(text, kind):
    with pytest.raises(ValueError):
        read_text(text, kind)


# -- Names of other libraries are answered with the names that they have here ----------------------


HINTS = tomllib.loads(Path(flowzoo.__file__).with_name("hints.toml").read_text("utf-8"))
LINES = {
    "train voting --batch-size 8": "Here it is --problems (of a step) and --samples (episodes of",
    "train voting --learning-rate 1e-5": "Here it is --lr.",
    "train voting --num-generations 8": "Here it is --samples.",
    "train voting --beta 0.1": "Here it is --kl.",
    "train voting --output-dir x": "Here it is --out.",
    "train voting --dataset x": "Here it is --options data=FILE.",
    "eval voting --dataset x": "Here it is --data.",
    "eval voting --model x": "Here it is --policy hf:MODEL.",
    "train voting --model_name_or_path x": "Here it is --model.",
    "train voting --resume": "Here it is the same command again, which goes on",
    "eval voting --learning-rate 1": "--options learning_rate=VALUE",  # eval has no rate
    "train voting --task gsm8k": "Here it is math, whose data it is: data=openai/gsm8k.",
    "play single --task humanevalplus": "Here it is code, whose data it is",
    "train voting --algorithm ppo": "Here it is grpo, which has the clipped loss of PPO",
    "eval voting --policy gpt-4o": "Here it is openai:gpt-4o@URL.",
    "train --config c.yaml": "Here it is a TOML file",
    "train --config c.toml": "unknown field in c.toml 'learning_rate'. Here it is lr.",
    "test voting": "Here it is eval.",
    "tran voting": "Did you mean 'train'?",
    "play vote": "Did you mean 'voting_v0'?",
    "play sin": "Did you mean 'single_v0'?",
}


def command_options() -> dict[str, set[str]]:
    found = {}
    for command in COMMANDS:
        for options in (actions_of(options_of(command)) or {"": options_of(command)}).values():
            names = {argument.label[2:] for argument in arguments_of(options) if argument.is_option}
            found[command] = found.get(command, set()) | names
    return found


@pytest.mark.parametrize("line", LINES)
def test_a_name_of_another_library_gets_the_name_of_this_one(line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text('workflow = "voting"\nlearning_rate = 1e-5\n')
    assert main(line.split()) == 2
    printed = capsys.readouterr().err
    assert LINES[line] in printed
    assert printed.count("\n") == 1


def test_environments_hint_as_commands_do():
    with pytest.raises(OptionError, match="Did you mean 'task'"):
        voting_v0.env(taks="math")
    with pytest.raises(UsageError, match="Here it is math, whose data it is"):
        voting_v0.env(task="gsm8k")


def test_help_is_a_command_too(capsys):
    for line in (["help"], ["help", "eval"]):
        with pytest.raises(SystemExit) as end:
            main(line)
        assert not end.value.code
        hinted = capsys.readouterr().out
        with pytest.raises(SystemExit):
            main([*line[1:], "--help"])
        assert capsys.readouterr().out == hinted


def test_what_hints_name_exists_and_what_they_are_for_does_not():
    commands = command_options()
    for pattern, words in HINTS["option"].items():
        for text in words if isinstance(words, list) else [words]:
            named = re.findall(r"(?<=--)[a-z][a-z-]+", text)
            if named and not text.startswith("torchrun"):
                assert any(set(named) <= options for options in commands.values()), text
                assert any(
                    named[0] in options and pattern not in options for options in commands.values()
                ), pattern
    known = {"algorithm": set(ALGORITHMS), "task": set(TASKS), "command": set(COMMANDS)}
    for kind, names in known.items():
        assert not names & set(HINTS[kind])
        for text in HINTS[kind].values():
            first = re.match(r"(?:the command `flowzoo )?([\w]+)", text)
            assert first is not None
            assert first[1] in names | set(COMMANDS), text
    assert set(HINTS) == {"option", "policy", "config", *known}
