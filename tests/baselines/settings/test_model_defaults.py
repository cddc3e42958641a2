"""Settings that follow from the model, and learning rates of policies and roles."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from flowzoo.agents.pocket import pocket_path
from flowzoo.agents.traits import ModelTraits, has_bfloat16, traits_of
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.layers import (
    AUTOMATIC,
    DEFAULT,
    EARLIER,
    GIVEN,
    LayeredConfig,
    earlier_layer,
    fill_from_models,
    learning_rate,
    run_compute,
    run_dtype,
    without_models,
)
from flowzoo.baselines.settings.policies import (
    idle_weights,
    policy_rates,
    read_policy_map,
    starting_models,
)
from flowzoo.baselines.training.plan import resolve
from flowzoo.commands.train import defaults_line
from flowzoo.errors import UsageError
from tests.refused import refused

TASK = 512
"""What a reply to the problems takes."""
POCKET = {
    "lr": 2e-4, "max_tokens": 64, "eval_problems": 500, "temperature": 1.0, "top_p": 1.0, "top_k": 0
}  # fmt: skip
REAL = POCKET | {"lr": 1e-6, "max_tokens": TASK, "eval_problems": 100}
QWEN3 = {  # the shapes of Qwen3-0.6B
    "hidden_size": 1024, "num_hidden_layers": 28, "intermediate_size": 3072,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "tie_word_embeddings": True, "max_position_embeddings": 40960, "layer_types": None,
}  # fmt: skip
THINKING = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
"""A template that thinks unless it is told not to, as Qwen3's."""


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., str]:
    """`folder(template, generation, **changes)`: a model's folder without any weights."""

    def make(template: str = "", generation: dict[str, Any] | None = None, **changes: Any) -> str:
        root = tmp_path / f"model-{len(list(tmp_path.iterdir()))}"
        root.mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(pocket_path() / name, root)
        shape = json.loads((pocket_path() / "config.json").read_text(encoding="utf-8"))
        (root / "config.json").write_text(json.dumps(shape | QWEN3 | changes), encoding="utf-8")
        if template:
            (root / "chat_template.jinja").write_text(template, encoding="utf-8")
        if generation is not None:
            text = json.dumps(generation)
            (root / "generation_config.json").write_text(text, encoding="utf-8")
        return str(root)

    return make


def filled(
    config: TrainConfig,
    names: Sequence[str] = ("shared",),
    earlier: Mapping[str, Any] | None = None,
) -> LayeredConfig:
    """Settings with everything that follows from an earlier run and from models."""
    layered = LayeredConfig(config).fill(earlier_layer(earlier), names)
    return fill_from_models(layered, starting_models(config, names), TASK)


def models(config: TrainConfig, *names: str) -> tuple[TrainConfig, dict[str, str]]:
    """Settings, and the models of policies of these names."""
    return config, starting_models(config, names)


def chosen(config: TrainConfig) -> dict[str, Any]:
    return {name: getattr(filled(config).config, name) for name in POCKET}


def told(layered: LayeredConfig) -> dict[str, Any]:
    """Values that are printed at the start, with what they follow from."""
    return {
        name: (getattr(layered.config, name), layered.sources[name])
        for name in AUTOMATIC
        if layered.sources[name] not in (DEFAULT, EARLIER, GIVEN)
    }


@pytest.mark.parametrize("model", ["pocket", "pocket:xs", "pocket:code-m"])
@pytest.mark.parametrize("rank", [0, 8])
def test_the_pocket_models_keep_their_numbers(model, rank):
    config = TrainConfig(model=model, lora_rank=rank)
    assert chosen(config) == POCKET
    assert told(filled(config)) == {
        "lr": (2e-4, "the model; an adapter" if rank else "the model"),
        "max_tokens": (64, "the model"),
        "eval_problems": (500, "the model"),
    }


def test_a_copy_of_a_pocket_model_has_its_numbers():
    assert chosen(TrainConfig(model=str(pocket_path()))) == POCKET


def test_a_real_model_has_others_and_its_weights_are_not_read(folder):
    model = folder()
    assert traits_of(model).weights == 596_049_920
    assert chosen(TrainConfig(model=model)) == REAL
    adapter = chosen(TrainConfig(model=model, lora_rank=16))
    assert adapter["lr"] == 5e-5


@pytest.mark.parametrize(
    ("weights", "full", "adapter"),
    [(1e5, 2e-4, 2e-4), (5e7, 5e-5, 2e-4), (1.35e8, 5e-6, 1e-4), (5e8, 1e-6, 5e-5),
     (4e9, 1e-6, 1e-5), (7e10, 1e-6, 1e-5)],
)  # fmt: skip
def test_larger_models_learn_more_slowly_and_adapters_faster(weights, full, adapter):
    assert learning_rate(ModelTraits(weights), adapter=False) == full
    assert learning_rate(ModelTraits(weights), adapter=True) == adapter


def test_every_default_is_told_with_what_it_follows_from(folder):
    def line(dtype="float32", **changes):
        config = TrainConfig(**{"compute": "float32", **changes}, engine_dtype=dtype)
        found = told(filled(config))
        values = {name: value for name, (value, _) in found.items()}
        return defaults_line(values, {name: source for name, (_, source) in found.items()})

    assert line() == "lr 0.0002, max_tokens 64, eval_problems 500 (from the model)"
    assert line(model=folder(), lora_rank=8) == (
        "lr 5e-05 (from the model; an adapter), max_tokens 512 (from the task), "
        "eval_problems 100 (from the model)"
    )
    assert line("int8", lr=1e-3, max_tokens=8) == (
        "old_logp recomputed (from engine_dtype int8), eval_problems 500 (from the model)"
    )
    assert line(model=folder(THINKING), lr=1e-3) == (
        "max_tokens 4096, eval_problems 100 (from the model)"
    )


@pytest.mark.parametrize(("thinking", "tokens"), [((), 4096), (("on",), 4096), (("off",), TASK)])
def test_models_that_think_get_longer_replies(folder, thinking, tokens):
    assert chosen(TrainConfig(model=folder(THINKING), thinking=thinking))["max_tokens"] == tokens


def test_a_generation_config_and_the_context_bound_replies(folder):
    said = folder(generation={"max_new_tokens": 300, "temperature": 0.6, "top_p": 0.95})
    assert chosen(TrainConfig(model=said))["max_tokens"] == 300
    short = folder(max_position_embeddings=512)
    assert chosen(TrainConfig(model=short))["max_tokens"] == 256
    said = folder(generation={"max_new_tokens": 2048})
    assert chosen(TrainConfig(model=said))["max_tokens"] == TASK, "a bound, no wish"


def test_the_model_s_own_sampling_is_taken_only_with_a_correction(folder):
    model = folder(generation={"temperature": 0.6, "top_p": 0.95, "top_k": 20})
    config = TrainConfig(model=model)
    assert chosen(config) == REAL
    corrected = replace(config, correction="renormalize", top_k=5)
    assert chosen(corrected) == REAL | {"temperature": 0.6, "top_p": 0.95, "top_k": 5}
    assert chosen(TrainConfig(correction="renormalize")) == POCKET


def test_the_engines_number_format_follows_from_models_and_hardware(folder):
    lower = "bfloat16" if has_bfloat16("cpu") else "float32"
    config = TrainConfig(model=folder(), device="cpu")
    layered = filled(config)
    assert layered.config.engine_dtype == lower
    assert ("engine_dtype" in told(layered)) == (lower == "bfloat16"), "printed if it is bfloat16"
    assert run_dtype(*models(replace(config, rollout_gpus=1.0), "shared")) == "bfloat16"
    assert run_dtype(*models(replace(config, engine_dtype="float32"), "shared")) == "float32"
    assert run_dtype(*models(TrainConfig(), "shared")) == "float32"
    mixed = replace(config, models=("b=pocket",))
    assert run_dtype(*models(mixed, "a", "b")) == "float32", "one number format for all"
    server = replace(config, engine="openai", endpoint=("http://h/v1",))
    assert run_dtype(*models(server, "shared")) == "float32"
    for before in ({"engine_dtype": "bfloat16"}, {"engine_dtype": "float32"}):
        again = without_models(TrainConfig(model="nowhere"), before)
        assert again.resolved_dtype == before["engine_dtype"]


def test_the_learners_number_format_follows_from_models_and_hardware(folder):
    lower = "bfloat16" if has_bfloat16("cpu") else "float32"
    config = TrainConfig(model=folder(), device="cpu", engine_dtype="float32")
    layered = filled(config)
    assert layered.config.compute == lower
    assert ("compute" in told(layered)) == (lower == "bfloat16"), "printed if it is bfloat16"
    assert run_compute(*models(TrainConfig(), "shared")) == "float32", "a pocket model"
    mixed = replace(config, models=("b=pocket",))
    assert run_compute(*models(mixed, "a", "b")) == "float32", "one number format for all"
    mixed = replace(mixed, models=("b=pocket",), frozen=("b",))
    assert run_compute(*models(mixed, "a", "b")) == lower, "of those that learn"
    assert run_compute(*models(replace(TrainConfig(), weights="bfloat16"), "shared")) == "bfloat16"
    exact = filled(replace(config, compute="float32"))
    assert (exact.config.compute, exact.sources["compute"]) == ("float32", GIVEN)
    again = without_models(TrainConfig(model="nowhere"), {"compute": "bfloat16"})
    assert again.compute == "bfloat16"


def test_several_models_share_what_suits_all(folder):
    config = TrainConfig(models=(f"b={folder()}",), sharing=("generator=a", "aggregator=b"))
    plan = resolve(config)
    assert (plan.config.lr, plan.config.max_tokens) == (1e-6, 128), "arithmetic takes few"
    assert plan.budgets.reply == 128
    assert {name: plan.sources[name] for name in plan.by_model} == {
        "lr": "the model", "max_tokens": "the task", "eval_problems": "the model"
    }  # fmt: skip
    assert {one.lr for one in plan.learners.values()} == {1e-6}
    assert filled(replace(config, frozen=("b",)), ["a", "b"]).config.lr == 2e-4
    disagree = replace(
        config, correction="renormalize",
        models=(f"a={folder(generation={'top_k': 20})}", f"b={folder(generation={'top_k': 50})}"),
    )  # fmt: skip
    with pytest.raises(UsageError, match=r"differ in `top_k` \(a 20, b 50\): give `top_k`"):
        filled(disagree, ["a", "b"])


def test_the_rate_of_a_policy_follows_from_its_rank_alone(folder):
    def rates(*ranks: str, **settings: Any) -> dict[str, float]:
        config = TrainConfig(model=folder(), sharing=("isolated",), **settings)
        config = replace(config, lora_rank=ranks)  # type: ignore[arg-type]
        plan = resolve(config)
        assert resolve(plan.config).config == plan.config, "as in a worker"
        return {name: one.lr for name, one in plan.learners.items()}

    assert rates("8") == {"aggregator": 5e-5, "generator": 5e-5}
    assert rates("8", "aggregator=0") == {"aggregator": 1e-6, "generator": 5e-5}
    assert rates("generator=8") == {"aggregator": 1e-6, "generator": 5e-5}
    given: dict[str, Any] = {"lr": ("aggregator=0.5",), "role_lr": ("generator=0.25",)}
    assert rates("8", **given) == {"aggregator": 0.5, "generator": 0.25}


def test_what_is_given_stays_and_then_no_model_is_looked_at():
    given: dict[str, Any] = {
        "model": "nowhere", "lr": 3e-5, "max_tokens": 77, "eval_problems": 9,
        "engine_dtype": "bfloat16", "compute": "bfloat16",
    }  # fmt: skip
    layered = filled(TrainConfig(**given))
    assert {name: getattr(layered.config, name) for name in given} == given
    assert {layered.sources[name] for name in given} == {GIVEN}
    assert told(layered) == {}
    with pytest.raises(UsageError, match="cannot load a model from 'nowhere'"):
        filled(TrainConfig(**given | {"lr": None}))


def test_a_run_that_is_continued_keeps_its_own():
    sampling = {"temperature": 0.7, "top_p": 0.9, "top_k": 4}
    before = {"lr": 3e-5, "max_tokens": 50, "eval_problems": 9} | sampling
    later = TrainConfig(model="nowhere", engine_dtype="float32", compute="float32")
    layered = filled(later, earlier=before)
    assert {name: getattr(layered.config, name) for name in before} == before
    assert {layered.sources[name] for name in before} == {EARLIER}
    assert told(layered) == {}
    assert filled(TrainConfig(lr=1e-2), earlier=before).config.lr == 1e-2


def test_every_value_has_the_source_of_the_first_layer_that_has_it():
    before = {"lr": 3e-5, "eval_every": 4, "shard_jobs": 0}
    layered = filled(TrainConfig(lr=1e-2, steps=30), earlier=before)
    assert set(layered.sources) == {one.name for one in fields(TrainConfig)}
    found = {"lr": GIVEN, "steps": GIVEN, "eval_every": EARLIER, "shard_jobs": EARLIER,
             "max_tokens": "the model", "checkpoint_every": DEFAULT, "problems": DEFAULT,
             "temperature": DEFAULT}  # fmt: skip
    assert {name: layered.sources[name] for name in found} == found
    assert (layered.config.eval_every, layered.config.checkpoint_every) == (4, 4)
    by_policy = filled(TrainConfig(lr=("a=0.5",)), ["a", "b"], {"lr": ("3e-5", "a=0.1")})
    assert by_policy.config.lr == ("3e-05", "a=0.5"), "open for b alone"


ROLES = {"generator": 3, "aggregator": 1}


def rates(*sharing: str, **settings: Any) -> dict[str, tuple[float, dict[str, float]]]:
    config = TrainConfig(**{"lr": 1e-3, **settings})
    found = policy_rates(config, read_policy_map(sharing, ROLES), ROLES)
    return {name: (one.lr, dict(one.roles)) for name, one in found.items()}


def test_a_role_alone_in_its_policy_gives_it_its_rate():
    assert rates("isolated", role_lr=("generator=1e-4",)) == {
        "generator": (1e-4, {}),
        "aggregator": (1e-3, {}),
    }
    assert rates("isolated", lr=("1e-3", "aggregator=0.5"))["aggregator"] == (0.5, {})
    mine = ("generator_0=a", "generator_1=b", "generator_2=b", "aggregator=judge")
    found = rates(*mine, role_lr=("generator=2e-4",), lr=("1e-3", "judge=3e-4"))
    assert found == {"a": (2e-4, {}), "b": (2e-4, {}), "judge": (3e-4, {})}
    assert set(rates("isolated", frozen=("generator",))) == {"aggregator"}


def test_within_a_policy_of_several_roles_sgd_alone_knows_rates():
    one = {"role_lr": ("generator=1e-4",), "lr": ("shared=2e-3",)}
    assert rates("shared", optimizer="sgd", **one) == {"shared": (2e-3, {"generator": 1e-4})}
    for name in ("adamw", "adafactor"):
        with pytest.raises(UsageError, match=f"is for sgd.*; {name} takes one step for all"):
            rates("shared", optimizer=name, **one)


@pytest.mark.parametrize(("settings", "message"), refused(__file__, "learning_rates"))
def test_mistakes_are_named(settings, message):
    with pytest.raises(UsageError, match=message):
        rates("isolated", **settings)


def test_the_weight_of_a_policys_only_role_is_told_of_where_it_does_nothing():
    def said(*sharing, **settings):
        return idle_weights(TrainConfig(**settings), read_policy_map(sharing, ROLES), ROLES)

    third = {"role_weights": ("generator=0.333",)}
    (line,) = said("isolated", **third)
    assert line.startswith("generator: role_weights generator=0.333 does next to nothing")
    assert "steps of adamw" in line
    assert "role_lr" in line
    assert said("shared", **third) == []
    assert said("isolated", **third, optimizer="sgd", lr=0.1) == []
    assert said("isolated", role_weights=("generator=0", "aggregator=1")) == [], "0 is no scale"
