"""The plan of a run: every setting reaches the learner, and what cannot be meant is refused."""

from dataclasses import Field, fields, replace
from typing import Any

import pytest

from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.schedule import UpdateTurn, lr_in, odd_rates
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.file import FOLDER, bundled_names, load_config
from flowzoo.baselines.settings.layers import AUTOMATIC
from flowzoo.baselines.settings.preflight import outline_run
from flowzoo.baselines.training.plan import resolve, schedule_ticks
from tests.baselines.bundled import POCKET

OF_RUN: dict[str, Field[Any]] = {one.name: one for one in fields(TrainConfig)}
OF_LEARNER: dict[str, Field[Any]] = {one.name: one for one in fields(LearnerConfig)}
DERIVED = {
    "loss", "iterations", "updates_per_iteration", "role_weights", "role_kl", "role_lr",
    "fixed_order", "coherence",
}  # fmt: skip
"""Fields of a learner that follow from several settings, or from words."""
UNSET = {"coherence_window", "microbatch_rows", "vocabulary_chunk", "skip_idle_rows"}
"""Fields that no setting of a run changes."""
SHARED = set(OF_RUN) & set(OF_LEARNER) - DERIVED
START = {"warmup", "role_gradients", "layout", "old_logp", "compute"}
"""Fields with another default in a learner without a run."""
OPEN = SHARED & set(AUTOMATIC) - START
"""Fields that a run may leave to the model, and a learner may not."""


def test_no_field_of_a_learner_is_forgotten():
    assert set(OF_LEARNER) == SHARED | DERIVED | UNSET
    assert not UNSET & set(OF_RUN)


def test_a_shared_field_is_declared_once():
    declared = {name for base in LearnerConfig.__bases__ for name in vars(base)["__annotations__"]}
    assert declared >= SHARED - OPEN
    assert {name for name in declared if OF_RUN[name].default != OF_LEARNER[name].default} == START
    assert all(OF_RUN[name].default is None for name in OPEN)


def test_shared_fields_are_those_of_the_run_and_the_others_follow():
    config = TrainConfig(
        lr=0.5, min_lr=0.25, schedule="linear", schedule_clock="update", warmup=3, steps=9,
        weight_decay=0.125, clip_norm=2.0, updates=0, rows_per_update=7, temperature=0.75,
        top_p=0.5, top_k=5, correction="renormalize", old_logp="recomputed", importance_cap=3.0,
        importance_level="sequence", importance_mode="mask", importance_floor=0.5,
        off_policy_mask=0.25,
        truncated="penalize", truncation_penalty=0.5, role_weights=("generator=2",),
        role_kl=("aggregator=0.5",), coherence=0.5, role_gradients=False, microbatch_tokens=99,
        coherence_form="published",
        compute="bfloat16", layout="padded", gradient_checkpointing=True, compile=True, kl=0.25,
        entropy=0.125, clip_low=0.375, clip_high=0.75, aggregation="seq-mean-token-sum",
        dual_clip=2.0, kl_estimate="plain", update_effect=False,
        optimizer="adafactor", decay="all", role_loss="sum",
    )  # fmt: skip
    adam = {"beta1": 0.5, "beta2": 0.75, "adam_eps": 1e-3, "weights": "bfloat16"}
    set_here = SHARED - set(adam)  # what excludes what the rest is set to
    assert all(getattr(config, name) != OF_RUN[name].default for name in set_here)
    other = replace(config, optimizer="adamw", **adam)
    (second,) = resolve(other).learners.values()
    assert {name: getattr(second, name) for name in adam} == adam
    (third,) = resolve(TrainConfig(optimizer="muon", beta2=0.75)).learners.values()
    assert third.beta2 == 0.75, "of what is no matrix"
    (learner,) = resolve(config).learners.values()
    assert all(getattr(learner, name) == getattr(config, name) for name in SHARED)
    assert learner.coherence == 0.5
    assert (learner.iterations, learner.updates_per_iteration) == (9, "by_rows")
    (unordered,) = resolve(replace(config, deterministic=False)).learners.values()
    assert (learner.fixed_order, unordered.fixed_order) == (True, False)
    assert (learner.role_weights, learner.role_kl) == ({"generator": 2.0}, {"aggregator": 0.5})
    loss = learner.loss
    found = (loss.kl_coef, loss.entropy_coef, loss.aggregation)
    assert found == (0.25, 0.125, "seq-mean-token-sum")
    assert learner.layout == "padded"
    assert (loss.ratio, loss.clip_low, loss.clip_high) == ("token", 0.375, 0.75)
    assert (loss.dual_clip, loss.kl_estimate) == (2.0, "plain")
    (learner,) = resolve(TrainConfig(algorithm="dr_grpo", dual_clip=0)).learners.values()
    assert (learner.loss.dual_clip, learner.loss.kl_estimate) == (None, "corrected")
    (learner,) = resolve(TrainConfig(algorithm="cispo", clip_high=3.0)).learners.values()
    assert (learner.loss.clip_low, learner.loss.clip_high) == (None, 3.0)
    assert (learner.loss.clipping, learner.loss.dual_clip) == ("weight", None)


def test_a_frozen_policy_has_no_learner_and_a_name_all_the_same():
    config = TrainConfig(sharing=("isolated",), frozen=("generator",))
    plan = resolve(config)
    assert (plan.names, list(plan.learners)) == (["aggregator", "generator"], ["aggregator"])
    assert (plan.samples, plan.budgets.reply) == (8, 64)


def test_a_plan_names_models_and_held_out_problems():
    words = ("generator=pocket:xs",)
    plan = resolve(TrainConfig(sharing=("isolated",), models=words, eval_problems=3))
    assert plan.models == {"aggregator": "pocket", "generator": "pocket:xs"}
    assert [problem.split for problem in plan.held_out] == ["validation"] * 3


def test_a_policy_keeps_a_reference_only_for_a_weight_of_its_own_roles():
    def kept(**settings: Any) -> list[str]:
        learners = resolve(TrainConfig(sharing=("isolated",), **settings)).learners
        return [name for name, learner in learners.items() if learner.needs_reference]

    assert kept(role_kl=("generator=0.1",)) == ["generator"]
    assert kept(kl=0.1, role_kl=("generator=0",)) == ["aggregator"]
    assert kept(kl=0.1) == ["aggregator", "generator"]


def test_the_coherence_of_a_policy_is_its_own_or_that_of_all():
    def found(*words: str, **settings: Any) -> dict[str, float]:
        config = TrainConfig(**{"sharing": ("isolated",), **settings, "coherence": words})
        return {name: one.coherence for name, one in resolve(config).learners.items()}

    assert found("generator=0.5") == {"aggregator": 0.0, "generator": 0.5}
    assert found("generator=0.5", "aggregator=1") == {"aggregator": 1.0, "generator": 0.5}
    assert found("shared=0.25", sharing=("shared",)) == {"shared": 0.25}
    learners = resolve(TrainConfig(sharing=("isolated",), coherence=0.5)).learners
    assert [one.coherence for one in learners.values()] == [0.5, 0.5]


def courses(config: TrainConfig, policies: int) -> list[list[float]]:
    """The learning rates of every policy by step, of a peak of 1."""
    learner = LearnerConfig(
        lr=1.0, warmup=config.warmup, schedule=config.schedule,
        schedule_clock=config.schedule_clock, iterations=schedule_ticks(config, policies),
    )  # fmt: skip
    turns = [UpdateTurn(index, policies) for index in range(policies)]
    return [[lr_in(step, turn, learner) for step in range(config.steps)] for turn in turns]


@pytest.mark.parametrize("name", [*bundled_names(FOLDER), *POCKET])
def test_a_bundled_rate_falls_once_and_is_0_at_the_end_only_but_on_the_published_clock(name):
    config = load_config(name)
    files = [option for option in config.options if option.startswith("data=")]
    options = tuple(option for option in config.options if option not in files)
    outline = outline_run(replace(config, options=options))
    for rates in courses(outline.config, len(set(outline.names) - set(config.frozen))):
        published = config.schedule_clock == "published"
        assert bool(list(odd_rates(rates))) == (published and "isolated" in config.sharing)
        assert published or min(rates[:-1]) > 0


def test_a_published_clock_tells_where_nothing_is_learned_and_where_it_rises():
    config = TrainConfig(
        workflow="orch_workers", sharing=("isolated",), steps=40, lr=2e-3, warmup=4,
        schedule="cosine", schedule_clock="published",
    )  # fmt: skip
    rises = "rises again after it has fallen, up to"
    notes = resolve(config).notes
    assert [note.partition(":")[0] for note in notes] == ["orchestrator", "synthesizer", "worker"]
    assert all(f"the learning rate {rises} 0.002, in 14 of 40 steps" in note for note in notes)
    assert resolve(replace(config, schedule_clock="update")).notes == []
    one = TrainConfig(steps=40, lr=2e-3, warmup=4, schedule="cosine", schedule_clock="published")
    assert resolve(one).notes == []
