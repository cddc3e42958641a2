"""Settings: the table of algorithms, refused combinations and values, learner groups."""

import ast
import json
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, get_args

import pytest

from flowzoo import cli
from flowzoo.agents.policy import Sampling
from flowzoo.agents.rollout.settings import JointSettings, TreeSettings
from flowzoo.agents.vllm.settings import EngineSettings
from flowzoo.baselines.advantages.spec import PRESETS, AdvantageSpec
from flowzoo.baselines.learner.config import Aggregation, LearnerConfig, LossConfig
from flowzoo.baselines.learner.lora import LoraSettings
from flowzoo.baselines.run.checkpoint import CheckpointRetention
from flowzoo.baselines.run.directory import RunDirectory
from flowzoo.baselines.settings.algorithms import ALGORITHMS, algorithm_named
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.file import from_table
from flowzoo.baselines.settings.policies import LearnerGroupPlan, plan_learner_groups
from flowzoo.baselines.settings.preflight import outline_run, preflight
from flowzoo.baselines.settings.rules import (
    check,
    learner_rules,
    run_rules,
    scale_rules,
    transfer_device_rules,
    transfer_rules,
)
from flowzoo.baselines.settings.sft import SftConfig
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.plan import resolve
from flowzoo.declared import (
    check_effects,
    check_value,
    choices_of,
    conditions,
    declared_types,
    fits,
)
from flowzoo.errors import UsageError
from flowzoo.sandbox.program import Limits
from tests.refused import refused
from tests.tables import read_tables

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


def test_every_preset_has_its_algorithm_and_every_one_says_how_it_differs():
    assert set(PRESETS) < set(ALGORITHMS)
    for name, algorithm in ALGORITHMS.items():
        assert algorithm.advantage is PRESETS.get(name, PRESETS["grpo"])
        assert algorithm.source
        assert algorithm.differs.endswith(".")
        assert algorithm.aggregation in get_args(Aggregation)
        LossConfig(
            ratio=algorithm.ratio, clip_low=algorithm.clip_low, clip_high=algorithm.clip_high,
            dual_clip=algorithm.dual_clip, clipping=algorithm.clipping,
        )  # fmt: skip


def test_sampling_fits_the_target():
    """Only tree sampling fills what `candidate` and `node` read."""
    needed = {"candidate": "tree", "node": "joint"}
    for algorithm in ALGORITHMS.values():
        assert algorithm.sampling == needed.get(algorithm.advantage.target, "episodes")


def test_unknown_names_get_near_matches():
    assert algorithm_named("rloo").advantage.mean == "loo"
    with pytest.raises(UsageError, match="dr_mas"):
        algorithm_named("drmas")


def test_the_table_fits_100_columns_and_names_every_choice(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main(["algorithms"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ALGORITHMS)
    assert max(map(len, out.splitlines())) <= 100
    words = ("candidate", "return_to_go, gamma 1", "turn, agent, state", "running 0.99, by call")
    assert all(word in out for word in words)
    assert cli.main(["algorithms", "dr_grpo", "paper"]) == 0
    out = capsys.readouterr().out
    assert "token-sum / (rows * max_tokens)" in out
    assert "2605.24202" in out
    assert "at_grpo" not in out


def test_json_holds_every_field(capsys):
    assert cli.main(["algorithms", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["name"] for row in rows] == list(ALGORITHMS)
    assert rows[0]["advantage"]["mean_group"] == ["problem"]
    assert cli.main(["algorithms", "grop"]) == 2


CLASSES = {
    cls.__name__: cls
    for cls in (
        TrainConfig, SftConfig, LearnerConfig, LossConfig, AdvantageSpec, CheckpointRetention,
        TreeSettings, JointSettings, Sampling, LoraSettings, EngineSettings, Limits,
    )
}  # fmt: skip
TABLES = read_tables(__file__, "misuses")


def value_of(node: ast.expr) -> Any:
    """Value of an argument: a literal, or `float(TEXT)`."""
    if isinstance(node, ast.Call):
        return float(ast.literal_eval(node.args[0]))
    return ast.literal_eval(node)


@pytest.mark.parametrize(("call", "line"), [*TABLES["misuses"], *TABLES["kept_apart"]])
def test_a_misuse_is_refused_in_a_line_that_names_the_setting(call, line, tmp_path):
    made: Any = ast.parse(call, mode="eval").body
    values = {keyword.arg: value_of(keyword.value) for keyword in made.keywords}

    def use() -> None:
        settings = CLASSES[made.func.id](**values)
        if isinstance(settings, TrainConfig):
            start_run(replace(settings, out=str(tmp_path)))

    with pytest.raises(UsageError, match=rf"\b{made.keywords[-1].arg}\b") as refused:
        use()
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


RAY: dict[str, Any] = {
    "workflow": "voting", "model": "pocket:xs", "sharing": ("isolated",), "problems": 2,
    "samples": 4, "shard_jobs": 2, "backend": "ray", "ray_address": "local", "rollout_workers": 2,
}  # fmt: skip
WORDS = ("generator=4", "aggregator=2")


@pytest.mark.parametrize(
    ("changes", "learner_groups"),
    [
        ({}, ()),
        ({"learner_workers": 3}, (LearnerGroupPlan(("aggregator", "generator"), 3),)),
        ({"learner_workers": WORDS},
         (LearnerGroupPlan(("aggregator",), 2), LearnerGroupPlan(("generator",), 4))),
        ({"learner_workers": ("generator=1",), "frozen": ("aggregator",)},
         (LearnerGroupPlan(("generator",), 1),)),
        ({"learner_workers": ("generator=2", "aggregator=2"), "lora_rank": 4},
         (LearnerGroupPlan(("aggregator", "generator"), 2),)),
        ({"learner_workers": WORDS, "lora_rank": 4, "models": ("generator=pocket",)},
         (LearnerGroupPlan(("aggregator",), 2), LearnerGroupPlan(("generator",), 4))),
    ],
)  # fmt: skip
def test_who_learns_with_whom(changes, learner_groups):
    assert resolve(TrainConfig(**RAY | changes)).learner_groups == learner_groups


def test_adapters_that_share_a_learner_group_are_told_so():
    said = (
        "aggregator, generator: adapters on one base take turns in one group of 2 learner workers"
    )
    words = ("generator=2", "aggregator=2")
    assert resolve(TrainConfig(**RAY, learner_workers=words, lora_rank=4)).notes == [said]
    assert resolve(TrainConfig(**RAY, learner_workers=2, lora_rank=4)).notes == []
    assert resolve(TrainConfig(**RAY, learner_workers=words)).notes == []


@pytest.mark.parametrize(("changes", "said"), refused(__file__, "learner_groups"))
def test_what_is_refused_before_anything_is_loaded(changes, said):
    with pytest.raises(UsageError, match=said):
        preflight(TrainConfig(**RAY | changes))


def test_one_alone_in_its_learner_group_may_share_a_gpu():
    words = ("generator=1", "aggregator=1")
    preflight(TrainConfig(**RAY, learner_workers=words, learner_gpus=0.5))


def test_a_file_has_a_number_or_words():
    for said in (2, ["generator=4", "aggregator=2"]):
        found = from_table({**RAY, "sharing": ["isolated"], "learner_workers": said}, "a test")
        assert found.learner_workers == (2 if said == 2 else WORDS)
    with pytest.raises(
        UsageError, match=r"must be a whole number or a list \(text each\), got \(4,\)"
    ):
        from_table({"learner_workers": [4]}, "a test")


def test_a_run_of_one_learner_group_goes_on_with_several(tmp_path):
    """Records hold a number, as they did before, or the words."""
    there = {**RAY, "out": str(tmp_path)}
    for asked in (2, WORDS, 0):
        config = TrainConfig(**there, learner_workers=asked)
        run = RunDirectory(config, {})
        run.begin(None)
        run.close()
        kept = json.loads((tmp_path / "run.json").read_text())["settings"]["learner_workers"]
        assert kept == (list(asked) if isinstance(asked, tuple) else asked)
        names = "aggregator", "generator"
        assert plan_learner_groups(
            config, dict.fromkeys(names, config), dict.fromkeys(names, "pocket:xs")
        ) == (resolve(TrainConfig(**asdict(config))).learner_groups)
