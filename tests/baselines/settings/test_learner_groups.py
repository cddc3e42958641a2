"""Which policies learn together, on how many workers, and what is refused."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from flowzoo.baselines.run.directory import RunDirectory
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.file import from_table
from flowzoo.baselines.settings.learner_groups import LearnerGroupPlan, plan_learner_groups
from flowzoo.baselines.settings.preflight import preflight
from flowzoo.baselines.training.plan import resolve
from flowzoo.errors import UsageError
from tests.refused import refused

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
