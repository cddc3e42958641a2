"""The table of engines, and the conformance checks: flowzoo's own pass, and faults are named."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from flowzoo.agents.engines import ENGINES, EngineTraits, Transformers, find_engine
from flowzoo.agents.hf.policy import TransformersPolicy, load_model
from flowzoo.agents.pocket import pocket_path
from flowzoo.agents.policy import Completion, Request
from flowzoo.agents.testing import check_engine, check_policy, module_log_probs
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.errors import UsageError
from flowzoo.functions import load_function

MODEL = str(pocket_path("math", "xs"))
LOADED = load_model(MODEL, "float32")
TRAITS = Transformers.traits


def test_the_table_names_every_engine_by_its_class():
    for name in ENGINES:
        engine = find_engine(name)
        assert engine.name == name
        for target in filter(None, (engine.traits.training, engine.traits.replicas)):
            assert callable(load_function(name, target)[0])
    with pytest.raises(UsageError, match=r"unknown engine 'vlm'\. Did you mean 'vllm'"):
        find_engine("vlm")


def test_a_class_is_named_by_its_place():
    assert find_engine("flowzoo.agents.engines:VLLM").traits.gpu_transfer
    with pytest.raises(UsageError, match=r"must be a subclass of flowzoo.*\.Engine"):
        find_engine("pathlib:Path")


def test_an_engine_that_only_plays_cannot_train(monkeypatch):
    for traits in (EngineTraits(), EngineTraits(own_weights=False, returns_ids=False)):
        monkeypatch.setattr(Transformers, "traits", traits)
        with pytest.raises(UsageError, match="`engine` transformers only plays"):
            TrainConfig()


def test_placement_decides_where_an_engine_computes():
    apart = {
        (name, placement): find_engine(name).traits.apart(placement)
        for name in ENGINES
        for placement in ("colocated", "split")
    }
    assert {key for key, value in apart.items() if value} == {
        ("vllm", "split"), ("openai", "colocated"), ("openai", "split"),
    }  # fmt: skip


def test_transformers_conforms():
    check_engine("transformers", MODEL, reference=module_log_probs(MODEL))


@pytest.mark.vllm
@pytest.mark.full
def test_vllm_conforms():
    check_engine("vllm", str(pocket_path("math")), reference=module_log_probs(str(pocket_path())))


def each(**changes: Callable[[Completion], Any]) -> Callable[[list[Completion]], list[Completion]]:
    return lambda replies: [
        replace(reply, **{name: change(reply) for name, change in changes.items()})
        for reply in replies
    ]


FAULTS: dict[str, tuple[str, Callable[[list[Completion]], list[Completion]]]] = {
    "a log-prob is missing": ("tokens and .* log-probs", each(logps=lambda c: c.logps[1:])),
    "no ids": ("has no token ids", each(output_ids=lambda c: (), logps=lambda c: ())),
    "log-probs of another temperature": (
        "log-probs and reference differ", each(logps=lambda c: [x / 2 for x in c.logps])
    ),
    "log-probs above 0": ("above 0", each(logps=lambda c: [-x for x in c.logps])),
    "noise of the call": ("another reply", each(text=lambda c: c.text + random.choice("abcdef"))),
    "shuffled": ("another reply", lambda replies: replies[::-1]),
    "nothing is counted as shortened": ("counted in `shortened`", each(shortened=lambda c: 0)),
    "unknown finish": ("has finish 'done'", each(finish=lambda c: "done")),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_policy_is_named(fault):
    message, spoil = FAULTS[fault]

    class Spoiled(TransformersPolicy):
        async def generate(self, requests: Sequence[Request]) -> list[Completion]:
            return spoil(await super().generate(requests))

    with pytest.raises(AssertionError, match=message):
        check_policy(
            lambda sampling: Spoiled(*LOADED, sampling=sampling),
            traits=TRAITS,
            reference=module_log_probs(MODEL),
        )


REQUEST_FAULTS: dict[str, tuple[str, Callable[[Request], Request]]] = {
    "one key for all": ("the key has no effect", lambda r: replace(r, key=("same",))),
    "no cap": ("max_tokens=1 must allow at most 1", lambda r: replace(r, max_tokens=None)),
    "no budget": ("must bound the prompt", lambda r: replace(r, max_prompt=None)),
}


@pytest.mark.parametrize("fault", REQUEST_FAULTS)
def test_a_request_that_is_not_kept_is_named(fault):
    message, spoil = REQUEST_FAULTS[fault]

    class Spoiled(TransformersPolicy):
        async def generate(self, requests: Sequence[Request]) -> list[Completion]:
            return await super().generate([spoil(request) for request in requests])

    with pytest.raises(AssertionError, match=message):
        check_policy(lambda sampling: Spoiled(*LOADED, sampling=sampling), traits=TRAITS)


def test_traits_are_compared_with_the_policy():
    with pytest.raises(AssertionError, match="`batching` static disagrees"):
        check_policy(lambda sampling: TransformersPolicy(*LOADED, sampling=sampling))
