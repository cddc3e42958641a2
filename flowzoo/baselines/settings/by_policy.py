"""Settings that may differ between policies: a value, or words (`flowzoo.declared.ByPolicy`)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.declared import declared_types, describe, read_text, takes_words, without_words
from flowzoo.envs.settings import read_named
from flowzoo.errors import UsageError

OF_SAMPLING = ("temperature", "top_p", "top_k")
"""Settings that frozen policies have too; the others are of learners."""


@cache
def by_policy(settings: type) -> Mapping[str, Any]:
    """Type of a single value by setting, for the settings that may differ between policies."""
    return {
        name: without_words(kind)
        for name, kind in declared_types(settings).items()
        if takes_words(kind)
    }


def read_policies(config: TrainConfig, trained: Sequence[str]) -> dict[str, TrainConfig]:
    """Settings of every policy that is trained or frozen, with its values in place of words.

    Raises:
        UsageError: a word of none of these policies, or no value of the setting.
    """
    names = sorted({*trained, *config.frozen})
    for setting in by_policy(TrainConfig):
        policies = names if setting in OF_SAMPLING else trained
        written_values(setting, getattr(config, setting), policies)
    return {name: of_policy(config, name) for name in names}


def of_policy(config: TrainConfig, policy: str) -> TrainConfig:
    """Return `config` with the values of one policy in place of words.

    Raises:
        UsageError: a value that is of another type, or out of the range of a plain value.
    """
    values = values_of(config, policy)
    return replace(config, **values) if values else config


def values_of(settings: object, policy: str) -> dict[str, Any]:
    """Values of one policy by setting, for the settings that are written as words."""
    return {
        name: value_of(name, getattr(settings, name), policy)
        for name in by_policy(type(settings))
        if isinstance(getattr(settings, name), tuple)
    }


def value_of(setting: str, written: object, policy: str) -> Any:
    """Value of one policy from what is written for a setting: its own, or that of the others."""
    values = written_values(setting, written)
    return values.get(policy, values[""])


def written_values(
    setting: str, written: object, policies: Sequence[str] | None = None
) -> dict[str, Any]:
    """Values by policy of what is written for a setting of a run; the others' is named "".

    Raises:
        UsageError: a word of none of these policies, or no value of the setting.
    """
    if not isinstance(written, list | tuple):
        return {"": written}
    texts = read_named(written, policies, setting, plain=True)
    kind = by_policy(TrainConfig)[setting]
    return {"": getattr(TrainConfig, setting)} | {
        name: read_value(text, kind, f"{setting} {name}".strip()) for name, text in texts.items()
    }


def with_values(config: TrainConfig, setting: str, values: Mapping[str, object]) -> TrainConfig:
    """Give a setting these values of the policies whose value is open.

    They are written as one value for all policies where no other is written or needed.
    """
    given = getattr(config, setting)
    texts = read_named(given, None, setting, plain=True) if isinstance(given, tuple) else {}
    named = {name: text for name, text in texts.items() if name not in values and text != str(None)}
    first = next(iter(values.values()))
    plain = named.pop("", repr(first))
    named |= {name: repr(value) for name, value in values.items() if repr(value) != plain}
    written = (plain, *(f"{name}={text}" for name, text in named.items()))
    changed: dict[str, Any] = {setting: written if named else first}
    return replace(config, **changed)


def read_value(text: str, kind: object, label: str) -> Any:
    """Read the text of a word as a value of the type `kind`; messages name it `label`."""
    try:
        return read_text(text, kind)
    except ValueError:
        raise UsageError(f"`{label}` must be {describe(kind)}, got {text!r}") from None


def numbers_by_role(
    arguments: Iterable[str], roles: Iterable[str], option: str
) -> dict[str, float]:
    """Read ROLE=NUMBER words for some of `roles`."""
    return {
        role: read_value(text, float, f"{option} {role}")
        for role, text in read_named(arguments, roles, option, "role").items()
    }
