"""Learner groups of a run, and the number of their workers: `learner_workers`."""

from collections.abc import Mapping
from typing import NamedTuple

from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.envs.settings import read_named
from flowzoo.errors import UsageError


class LearnerGroupPlan(NamedTuple):
    """Policies that learn in one learner group, one after another."""

    policies: tuple[str, ...]
    workers: int


def plan_learner_groups(
    config: TrainConfig, policy_settings: Mapping[str, TrainConfig], starts: Mapping[str, str]
) -> tuple[LearnerGroupPlan, ...]:
    """Plan the learner groups of a run, for `starts`, the starting model by policy.

    One number makes one learner group of all policies; with one for each policy every policy with
    full weights has a separate learner group, and so has every base of adapters.
    """
    trained = tuple(name for name in starts if name not in config.frozen)
    workers = config.learner_workers
    if isinstance(workers, int):
        groups = (LearnerGroupPlan(trained, workers),) if workers else ()
    else:
        groups = _apart(policy_settings, _numbers(config, workers, trained), starts)
    for group in groups:
        if group.workers > 1 and config.learner_gpus not in (0, 1):
            raise UsageError(
                f"each of {group.workers} learner workers of {', '.join(group.policies)} computes "
                "on one GPU of its own, or on the CPU, got `learner_gpus` "
                f"{config.learner_gpus:g}: set it to 1 or 0 (one learner worker alone may share: "
                "0.5)"
            )
    return groups


def _numbers(
    config: TrainConfig, arguments: tuple[str, ...], trained: tuple[str, ...]
) -> dict[str, int]:
    frozen = [argument for argument in arguments if argument.partition("=")[0] in config.frozen]
    if frozen:
        raise UsageError(
            f"policy {frozen[0].partition('=')[0]} is frozen and has no learner: leave "
            f"{frozen[0]} out of `learner_workers`"
        )
    numbers = read_named(arguments, trained, "learner_workers")
    for name, number in numbers.items():
        if not number.isdecimal() or not int(number):
            raise UsageError(
                f"`learner_workers` takes POLICY=NUMBER, 1 or more, got {name}={number}"
            )
    missing = [name for name in trained if name not in numbers]
    if missing:
        raise UsageError(
            f"with `learner_workers` for each policy there are none for {', '.join(missing)}: add "
            f"{' '.join(f'{name}=N' for name in missing)}, or give one number for "
            "all policies together"
        )
    return {name: int(numbers[name]) for name in trained}


def _apart(
    policy_settings: Mapping[str, TrainConfig],
    numbers: Mapping[str, int],
    starts: Mapping[str, str],
) -> tuple[LearnerGroupPlan, ...]:
    together: dict[tuple[str, ...], list[str]] = {}
    for name in numbers:
        # Adapters of one base share its weights, and so the processes that hold them.
        key = ("base", starts[name]) if policy_settings[name].lora_rank else ("policy", name)
        together.setdefault(key, []).append(name)
    for names in together.values():
        if len({numbers[name] for name in names}) > 1:
            raise UsageError(
                f"{', '.join(names)} are adapters on one base ({starts[names[0]]}), and learn on "
                "it in one group: give them the same number in `learner_workers`, that of this "
                f"group, got {' '.join(f'{name}={numbers[name]}' for name in names)}"
            )
    return tuple(LearnerGroupPlan(tuple(names), numbers[names[0]]) for names in together.values())
