"""The plan of a run: what reaches the learner, what is refused, early stopping, model checks."""

import json
import shutil
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowzoo.agents.hf.policy import load_model
from flowzoo.agents.identity import identify
from flowzoo.agents.pocket import pocket_path
from flowzoo.baselines.engines.hf import LoadedPolicy
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.schedule import UpdateTurn, lr_in, odd_rates
from flowzoo.baselines.learner.weights import Weights
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.file import FOLDER, bundled_names, load_config
from flowzoo.baselines.settings.layers import AUTOMATIC
from flowzoo.baselines.settings.preflight import outline_run
from flowzoo.baselines.training.model_checks import CHECKS, warn_of_faults
from flowzoo.baselines.training.plan import resolve, schedule_ticks
from flowzoo.baselines.training.train_state import beyond_noise, stop_reason
from flowzoo.cli import main
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


ITEMS = 100


def make_row(step: int, right: int) -> dict[str, Any]:
    """An evaluation in which the first `right` of the items are right."""
    scores = [1.0] * right + [0.0] * (ITEMS - right)
    return {"step": step, "eval/scores": scores, "eval/reward/mean": right / ITEMS}


def rows_of(*right: int) -> list[dict[str, Any]]:
    """Evaluations at every second step, with a step without one before each but the first."""
    found = [make_row(0, right[0])]
    for number, count in enumerate(right[1:], start=1):
        found += [{"step": 2 * number - 1}, make_row(2 * number, count)]
    return found


def reason(rows: list[dict[str, Any]], **settings: Any) -> str:
    return stop_reason(rows, TrainConfig(**settings))


def ends(rows: list[dict[str, Any]], patience: int = 0, at: float | None = None) -> int | None:
    """The step at which a run with these metrics ends."""
    for end in range(1, len(rows) + 1):
        if reason(rows[:end], stop_patience=patience, stop_at=at):
            return rows[end - 1]["step"]
    return None


def test_without_either_setting_nothing_ends():
    assert ends(rows_of(50, 50, 0, 0, 100, 100)) is None
    assert reason([], stop_patience=1, stop_at=0.5) == ""


def test_an_accuracy_that_is_good_enough_ends_at_once():
    assert ends(rows_of(20, 40, 90, 95), at=0.9) == 4
    assert ends(rows_of(95), at=0.9) == 0
    assert ends(rows_of(20, 89, 30), at=0.9) is None
    assert reason(rows_of(90), stop_at=0.9) == "held-out accuracy 90.0 % reaches stop_at 0.9"


def test_a_fall_ends_a_run_if_it_is_asked_to():
    rows = rows_of(50, 80, 40, 38, 80)
    rows[6]["watch/events"] = [{"text": "a fall since step 4"}]
    assert ends(rows) is None
    said = [reason(rows[:end], on_collapse="stop") for end in range(1, len(rows) + 1)]
    assert [row["step"] for row, one in zip(rows, said, strict=True) if one] == [6]
    assert said[6] == "a fall since step 4 (on_collapse stop)"
    assert reason(rows[:7], on_collapse="rollback") == ""


def test_evaluations_without_a_gain_beyond_noise_are_counted():
    assert ends(rows_of(50, 51, 50, 52, 49), patience=3) == 6
    assert ends(rows_of(50, 51, 50, 60, 61, 62, 61), patience=3) == 12
    assert ends(rows_of(50, 51, 50), patience=3) is None
    said = reason(rows_of(50, 60, 61, 59), stop_patience=2)
    assert said == (
        "none of the 2 evaluations since step 2 was better than its 60.0 % beyond noise "
        "(stop_patience 2)"
    )


def test_many_small_gains_add_up_to_one():
    steady = rows_of(*range(50, 80, 2))
    assert not beyond_noise(steady[0]["eval/scores"], steady[2]["eval/scores"])
    assert ends(steady, patience=3) is None


def test_a_run_ends_at_evaluations_alone():
    rows = [*rows_of(50, 50, 50), {"step": 5}]
    assert reason(rows[:-1], stop_patience=2)
    assert reason(rows, stop_patience=2) == ""


def test_a_single_item_tells_better_from_not():
    assert beyond_noise([0.0], [1.0])
    assert not beyond_noise([1.0], [1.0])


@given(st.lists(st.integers(0, ITEMS), min_size=1, max_size=8), st.integers(1, 4))
def test_more_patience_never_ends_sooner(right, patience):
    rows = rows_of(*right)
    less, more = ends(rows, patience), ends(rows, patience + 1)
    assert less is None or more is None or less < more
    assert less is not None or more is None


@pytest.mark.parametrize("shift", [0.1, 0.4])
def test_noise_is_paired_by_item(shift):
    before = [float(item % 2) for item in range(ITEMS)]
    after = [score + shift * (item < 8) for item, score in enumerate(before)]
    assert beyond_noise(before, after), "a gain of 8 items and a loss of none"
    assert not beyond_noise(before, before[::-1])


PLAIN = "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
OPENED = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def template(turn: str) -> str:
    return "{% for message in messages %}" + turn + "{% endfor %}" + OPENED


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(pocket_path(scale="xs"), tmp_path / "model"))


def examined(model: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict]]:
    """Exit status of the command, and its rows by name."""
    status = main(["doctor", "--model", model, "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return status, {row["name"]: row for row in rows}


def test_a_pocket_model_has_no_fault(capsys):
    status, rows = examined("pocket:math-xs", capsys)
    assert [row for row in rows.values() if not row["ok"]] == []
    assert (status, list(rows)) == (0, [check.name for check in CHECKS])
    assert "<|im_start|>user" in rows["template"]["detail"]
    assert "packed" in rows["sampler and learner"]["detail"]


def test_a_model_that_cannot_be_loaded_has_one_row(folder, capsys):
    (folder / "model.safetensors").write_bytes(b"")
    status, rows = examined(str(folder), capsys)
    assert (status, list(rows)) == (1, ["weights"])
    assert "cannot load a model from" in rows["weights"]["detail"]
    assert rows["weights"]["remedy"] == CHECKS[0].remedy


def test_a_model_without_a_template_or_ends_has_faults_with_remedies(folder, capsys):
    (folder / "chat_template.jinja").unlink()
    status, rows = examined(str(folder), capsys)
    assert status == 1
    assert not rows["template"]["ok"]
    assert "has no chat template" in rows["template"]["detail"]
    assert "chat_template.jinja" in rows["template"]["remedy"]
    assert rows["batches"]["ok"]


@pytest.mark.parametrize(
    ("turn", "fault"),
    [
        (PLAIN, ""),
        (PLAIN.replace("content }}", "content }} "), ""),
        (PLAIN.replace("content", "content|upper"), "rows: a reply does not follow the prompt"),
        (PLAIN.replace("<|im_end|>", "."), "ends: the chat template ends an assistant's message"),
        (PLAIN.replace("message.content", "messages[-1].content"), "history: the chat template"),
    ],
)
def test_training_names_faults_of_a_template(folder, caplog, turn, fault):
    model, tokenizer = load_model(str(folder), "float32")
    tokenizer.chat_template = template(turn)
    loaded = LoadedPolicy(Weights(model), tokenizer, identify(str(folder)))
    warn_of_faults({"a": loaded, "b": loaded})
    assert (fault in caplog.text) if fault else caplog.text == ""
    assert caplog.text.count("ends:") in (0, 1)
