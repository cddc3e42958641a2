"""Conformance checks for engines and policies, flowzoo's own and yours.

    from flowzoo.agents.testing import check_engine, check_policy
    check_engine("echo", "path/to/model")
    check_policy(lambda sampling: MyPolicy(sampling=sampling))

Take a small model: some 60 replies are sampled.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import get_args

from flowzoo.agents.engines import Engine, EngineTraits, find_engine
from flowzoo.agents.policy import Batching, Completion, Policy, Request, Sampling
from flowzoo.envs.records import FinishReason
from flowzoo.errors import UsageError
from flowzoo.functions import load_function

LogProbs = Callable[[Sequence[int], Sequence[int], float], Sequence[float]]
"""Log-probs of the tokens of a reply, from prompt, reply and temperature."""

_TEMPERATURE = 2.0
"""High enough for different keys to give different replies; the highest that vLLM takes."""
_REPLY = 12
"""Most tokens of a reply in the checks."""
_QUESTIONS = ("What is 2 + 3?", "Name a color.", "Count to ten, one number a line.", "Say yes.")


@dataclass(frozen=True, slots=True)
class _Subject:
    """A policy under test, with what may be expected of it."""

    policy: Policy
    traits: EngineTraits
    sampling: Sampling
    tolerance: float

    def answer(self, requests: Sequence[Request]) -> list[Completion]:
        return asyncio.run(self.policy.generate(requests))


def check_engine(
    engine: str | Engine, model: str, *, reference: LogProbs | None = None, tolerance: float = 1e-3
) -> None:
    """Check an engine: its name and traits, the models it refuses, and the policies it opens.

    Args:
        engine: an engine, or its name as in settings.
        model: path or id of a small model that it can load.
        reference: log-probs under the model's weights, e.g. `module_log_probs(model)`; None: the
            log-probs are only compared between batches.
        tolerance: largest difference of two log-probs of one token.

    Raises:
        AssertionError: it does not do what engines must; the message says what.
    """
    subject = find_engine(engine) if isinstance(engine, str) else engine
    _check_traits(subject)
    subject.check(model)
    if not subject.traits.server:
        missing = "/no/such folder/of-a-model"
        _refuses(lambda: subject.check(missing), f"check({missing!r})")
    check_policy(
        lambda sampling: subject.open(model, name="checked", sampling=sampling),
        traits=subject.traits,
        reference=reference,
        tolerance=tolerance,
    )


def check_policy(
    start: Callable[[Sampling], Policy],
    *,
    traits: EngineTraits | None = None,
    reference: LogProbs | None = None,
    tolerance: float = 1e-3,
) -> None:
    """Check a policy: order, ids and log-probs, samples by key, limits, errors, closing.

    Args:
        start: makes the policy for given temperature and lengths; called twice.
        traits: its expected capabilities; None: `EngineTraits()`.
        reference: as for `check_engine`.
        tolerance: as for `check_engine`.

    Raises:
        AssertionError: it does not do what policies must; the message says what.
    """
    for temperature in (_TEMPERATURE, 0.0):
        sampling = Sampling(temperature=temperature, max_tokens=_REPLY)
        policy = start(sampling)
        subject = _Subject(policy, traits or EngineTraits(), sampling, tolerance)
        try:
            _check_interface(subject)
            _check_ids(subject, reference if temperature else None)
            if subject.traits.same_in_any_batch:
                _check_batches(subject)
            _check_keys(subject)
            _check_limits(subject)
            _check_errors(subject)
        finally:
            asyncio.run(policy.close())
        asyncio.run(policy.close())  # closing twice must be harmless


def module_log_probs(model: str) -> LogProbs:
    """Reference log-probs: a forward pass of the transformers model at a path, in float32."""
    import torch

    from flowzoo.agents.hf.policy import load_model

    module, _ = load_model(model, "float32")

    def log_probs(prompt: Sequence[int], reply: Sequence[int], temperature: float) -> list[float]:
        ids = torch.tensor([[*prompt, *reply]])
        with torch.no_grad():
            logits = module(ids).logits[0, len(prompt) - 1 : -1].float()
        rows = (logits / temperature).log_softmax(-1)
        return rows.gather(1, torch.tensor([list(reply)]).T)[:, 0].tolist()

    return log_probs


def _check_traits(engine: Engine) -> None:
    traits = engine.traits
    _expect(
        bool(engine.name) and not set(engine.name) & set(":@= ,"),
        f"`name` must have no blank, colon, comma, @ or =, got {engine.name!r}",
    )
    _expect(
        traits.in_process or traits.own_process,
        "`traits` must name a place to compute: in_process, own_process or both",
    )
    for module in traits.modules:
        _expect(find_spec(module) is not None, f"the module {module} is not installed")
    for attribute in ("training", "replicas"):
        target = getattr(traits, attribute)
        if target:
            load_function(f"`{attribute}` of {engine.name}:", target)
    _expect(
        traits.returns_ids or not traits.training,
        "an engine with `training` must return token ids (returns_ids=True)",
    )


def _check_interface(subject: _Subject) -> None:
    policy = subject.policy
    _expect(isinstance(policy, Policy), "a policy needs name, batching, generate and close")
    _expect(bool(policy.name), "`name` must not be empty")
    _expect(
        policy.batching in get_args(Batching),
        f"`batching` must be one of {', '.join(get_args(Batching))}, got {policy.batching!r}",
    )
    _expect(
        (policy.batching == "stream") == subject.traits.batches_itself,
        f"`batching` {policy.batching} disagrees with "
        f"traits.batches_itself={subject.traits.batches_itself}",
    )
    _expect(subject.answer([]) == [], "no requests must give no completions")


def _check_ids(subject: _Subject, reference: LogProbs | None) -> None:
    for request, reply in zip(_requests(), subject.answer(_requests()), strict=True):
        what = f"the reply to {request.key}"
        _expect(isinstance(reply, Completion), f"{what} must be a Completion, got {reply!r:.60}")
        _expect(isinstance(reply.text, str), f"{what} must have a text")
        _expect(reply.finish in get_args(FinishReason), f"{what} has finish {reply.finish!r}")
        _expect(
            len(reply.logps) == len(reply.output_ids),
            f"{what} has {len(reply.output_ids)} tokens and {len(reply.logps)} log-probs",
        )
        if not subject.traits.returns_ids:
            continue
        _expect(
            bool(reply.prompt_ids) and bool(reply.output_ids),
            f"{what} has no token ids, and traits.returns_ids is True",
        )
        _expect(
            all(math.isfinite(logp) and logp <= 1e-6 for logp in reply.logps),
            f"{what} has log-probs that are not finite or above 0: {list(reply.logps)}",
        )
        if reference is not None:
            expected = reference(reply.prompt_ids, reply.output_ids, subject.sampling.temperature)
            _expect_near(
                reply.logps, expected, subject.tolerance, f"{what}: log-probs and reference"
            )


def _check_batches(subject: _Subject) -> None:
    requests = _requests()

    async def at_once() -> list[Completion]:
        calls = [subject.policy.generate([request]) for request in requests]
        return [reply for (reply,) in await asyncio.gather(*calls)]

    together = subject.answer(requests)
    others = {
        "in another order": subject.answer(requests[::-1])[::-1],
        "alone": [subject.answer([request])[0] for request in requests],
        "among concurrent calls": asyncio.run(at_once()),
    }
    for where, replies in others.items():
        for request, first, second in zip(requests, together, replies, strict=True):
            what = f"{request.key} {where}"
            _expect(
                (first.text, tuple(first.output_ids)) == (second.text, tuple(second.output_ids)),
                f"{what}: another reply, {first.text!r} and {second.text!r}; a sample may depend "
                "on its key alone (or set same_in_any_batch=False)",
            )
            _expect_near(
                first.logps, second.logps, subject.tolerance, f"{what}: log-probs of two batches"
            )


def _check_keys(subject: _Subject) -> None:
    traits, question = subject.traits, _requests()[2]
    texts = {
        subject.answer([replace(question, key=("other", number))])[0].text for number in range(8)
    }
    if not subject.sampling.temperature:
        _expect(
            len(texts) == 1, f"temperature 0 must not depend on the key, got {sorted(texts)[:2]}"
        )
    elif traits.same_in_any_batch and traits.returns_ids:
        _expect(
            len(texts) > 1,
            f"eight keys gave one reply at temperature {_TEMPERATURE:g}: the key has no effect",
        )


def _check_limits(subject: _Subject) -> None:
    request = _requests()[2]
    if not subject.traits.returns_ids:
        return
    for cap, limit in ((1, 1), (3, 3), (10 * _REPLY, _REPLY)):
        (reply,) = subject.answer([replace(request, max_tokens=cap)])
        count = len(reply.output_ids)
        _expect(count <= limit, f"max_tokens={cap} must allow at most {limit} tokens, got {count}")
        _expect(
            reply.finish != "length" or count == limit,
            f"finish must be `length` only at the limit of {limit} tokens, got {count}",
        )
    long = replace(request, messages=[{"role": "user", "content": "one two three " * 40}])
    budget = len(subject.answer([long])[0].prompt_ids) // 2
    (reply,) = subject.answer([replace(long, max_prompt=budget)])
    _expect(
        len(reply.prompt_ids) <= budget,
        f"max_prompt={budget} must bound the prompt, got {len(reply.prompt_ids)} tokens",
    )
    _expect(reply.shortened > 0, "a prompt over its budget must be counted in `shortened`")


def _check_errors(subject: _Subject) -> None:
    request = _requests()[0]
    if subject.traits.returns_ids:
        no_reply, no_prompt = replace(request, max_tokens=0), replace(request, max_prompt=0)
        _refuses(lambda: subject.answer([no_reply]), "a request with max_tokens=0")
        _refuses(lambda: subject.answer([no_prompt]), "a request with max_prompt=0")
    surrogate = replace(request, messages=[{"role": "user", "content": "half a \ud83d pair"}])
    try:
        subject.answer([surrogate])
    except Exception as error:
        raise AssertionError(f"a lone surrogate in a message raised {error!r}") from error


def _requests() -> list[Request]:
    return [
        Request(("check", index), "solver_0", "solver", [{"role": "user", "content": question}])
        for index, question in enumerate(_QUESTIONS)
    ]


def _expect_near(
    first: Sequence[float], second: Sequence[float], tolerance: float, what: str
) -> None:
    gap = max((abs(a - b) for a, b in zip(first, second, strict=True)), default=0.0)
    _expect(gap <= tolerance, f"{what} differ by {gap:.3g}, more than {tolerance:g}")


def _refuses(call: Callable[[], object], what: str) -> None:
    try:
        call()
    except UsageError:
        return
    except Exception as error:
        raise AssertionError(f"{what} must raise UsageError, raised {error!r}") from error
    raise AssertionError(f"{what} must raise UsageError, raised nothing")


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
