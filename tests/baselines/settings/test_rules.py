"""Ways of new weights that cannot work are refused before anything is loaded."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from flowzoo.baselines.settings.algorithms import ALGORITHMS, algorithm_named
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.preflight import outline_run
from flowzoo.baselines.settings.rules import (
    check,
    learner_rules,
    run_rules,
    scale_rules,
    transfer_device_rules,
    transfer_rules,
)
from flowzoo.declared import (
    check_effects,
    check_value,
    choices_of,
    conditions,
    declared_types,
    fits,
)
from flowzoo.errors import UsageError
from tests.refused import refused

SPLIT: dict[str, Any] = {"engine": "vllm", "placement": "split"}
NCCL: dict[str, Any] = {**SPLIT, "weight_transfer": "nccl"}
IPC: dict[str, Any] = {**SPLIT, "weight_transfer": "ipc"}
RANKS: dict[str, Any] = {"backend": "torchrun", "ranks": 2}

REFUSED = refused(__file__, "transfers")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_ways_that_cannot_work_are_refused(settings, message):
    config = TrainConfig(**settings)
    with pytest.raises(UsageError, match=message):
        check([*scale_rules(config, ALGORITHMS[config.algorithm]), *learner_rules(config)])


@pytest.mark.parametrize(
    "settings",
    [
        {}, SPLIT, {**SPLIT, "device": "cpu", "lora_rank": 8}, IPC, {**IPC, "engine_devices": "0"},
        {**IPC, "device": "cuda:1", "engine_devices": "1,0"}, {**IPC, **RANKS},
        {**NCCL, "engine_devices": "1"}, {**NCCL, "device": "cuda:1", "engine_devices": "0,1"},
        {**NCCL, **RANKS, "engine_devices": "2,3"},
    ],
)  # fmt: skip
def test_ways_that_may_work_are_not(settings):
    check(transfer_rules(TrainConfig(**settings)))


def test_gpus_have_the_names_of_the_machine(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    check(transfer_rules(TrainConfig(**IPC)))
    check(transfer_rules(TrainConfig(**IPC, device="cuda:1", engine_devices="5")))
    check(transfer_rules(TrainConfig(**NCCL, engine_devices="5")))
    with pytest.raises(UsageError, match="engine is to be on GPU 0 while the learner is on GPU 4"):
        check(transfer_rules(TrainConfig(**IPC, engine_devices="0")))
    with pytest.raises(UsageError, match="are to be on GPU 5"):
        check(transfer_rules(TrainConfig(**NCCL, device="cuda:1", engine_devices="5")))


def test_a_learner_that_turns_out_to_be_on_a_cpu_is_refused_before_its_model():
    pytest.importorskip("torch", reason="the trainer needs flowzoo[train]")
    import torch

    from flowzoo.baselines.engines.hf import load_policies

    config = TrainConfig(**IPC, model="/nowhere")
    check(transfer_device_rules(config, "cuda:0"))
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UsageError, match="learner is on cpu: leave it at file"):
        load_policies(config, {})


@pytest.mark.parametrize(
    ("changes", "distance"),
    [({}, 10), ({"sync_check_every": 3}, 3), ({"max_staleness": 1}, 1), ({"backend": "ray"}, 1),
     ({"backend": "torchrun"}, 1)],
)  # fmt: skip
def test_rows_stand_in_for_probes_only_where_they_prove_something(changes, distance):
    config = TrainConfig(engine="vllm", **changes)
    assert config.probe_distance == distance
    check(run_rules(config, None))
    if distance == 1:
        check(run_rules(replace(config, sync_check_every=1), None))
        with pytest.raises(UsageError, match="leaves out probes"):
            check(run_rules(replace(config, sync_check_every=2), None))


def changed_value(setting: str) -> Any:
    """A legal value of a setting that is not its default."""
    kind, default = declared_types(TrainConfig)[setting], getattr(TrainConfig, setting)
    for value in (*choices_of(kind), True, 3, 0.5, "x", (0.25, 0.5)):
        if value != default and fits(value, kind):
            with suppress(UsageError):
                check_value(setting, value, kind)
                return value
    raise AssertionError(f"no other value of {setting}")


def test_every_setting_with_a_condition_is_refused_where_the_condition_does_not_hold():
    plain, algorithm = TrainConfig(), algorithm_named("grpo")
    idle = {
        name: only
        for name, only in conditions(TrainConfig).items()
        if not only.holds(plain, algorithm)
    }
    assert len(idle) >= 25
    for name, only in idle.items():
        changed = replace(plain, **{name: changed_value(name)})
        with pytest.raises(UsageError) as refusal:
            outline_run(changed)
        assert str(refusal.value).startswith(f"`{name}` is a setting {only.subject}, and ")
        assert "\n" not in str(refusal.value)


def test_a_setting_has_an_effect_if_it_has_one_on_any_policy():
    policies = [TrainConfig(lora_rank=rank, lora_alpha=8) for rank in (0, 4)]
    check_effects(policies)
    with pytest.raises(UsageError, match=r"here: leave it at 32$"):
        check_effects(policies[:1])
