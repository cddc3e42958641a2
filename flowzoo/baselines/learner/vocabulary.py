"""Log-probabilities from hidden states, without the logits of the whole batch in memory."""

import itertools
import weakref
from collections.abc import Hashable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from flowzoo.agents.hf.attention import cached_parts, product_dtype
from flowzoo.agents.hf.decode import model_fingerprint
from flowzoo.agents.hf.kept_linears import LowerLinear
from flowzoo.errors import UsageError

_SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier", "output_multiplier")
"""Fields of configurations that hold a factor on the logits, or its inverse."""
_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""Fields of configurations that hold a cap c: logits become c * tanh(logits / c)."""
_STRETCH = 40.0
"""Largest logit of the comparison; caps are between 15 and 50, and far smaller logits pass them
unchanged."""

_forms: weakref.WeakKeyDictionary[PreTrainedModel, tuple[float, float | None]] = (
    weakref.WeakKeyDictionary()
)
"""Model -> scale and cap."""
_known: dict[Hashable, tuple[float, float | None]] = {}
"""Kind of model -> the same, found once a kind."""


class OutputHead(NamedTuple):
    """The way from a state h to logits: z = scale * linear(h), and cap * tanh(z / cap)."""

    linear: nn.Linear
    scale: float = 1.0
    cap: float | None = None

    def __call__(self, states: Tensor) -> Tensor:
        """The logits of `states` (..., hidden)."""
        logits: Tensor = self.linear(states)
        if self.scale != 1.0:
            logits = logits * self.scale
        return logits if self.cap is None else self.cap * (logits / self.cap).tanh()


def head_of(model: PreTrainedModel) -> OutputHead:
    """The output head of `model`, whose form is found by a forward pass once a kind of model."""
    linear = model.get_output_embeddings()
    if not isinstance(linear, nn.Linear):
        raise UsageError(
            f"{type(model).__name__} has no plain linear layer as its output head, but "
            f"{'none' if linear is None else type(linear).__name__}: the learner needs one."
        )
    if model not in _forms:
        kind = model_fingerprint(model)
        if kind not in _known:
            _known[kind] = _find_form(model, linear)
        _forms[model] = _known[kind]
    return OutputHead(linear, *_forms[model])


def body_of(model: PreTrainedModel) -> nn.Module:
    """The part of `model` whose output holds the last hidden states."""
    if model.base_model is not model:
        return model.base_model
    parts = [part for part in model.children() if isinstance(part, PreTrainedModel)]
    if len(parts) != 1:  # Llama 4 names its body otherwise than it says
        raise UsageError(f"{type(model).__name__} has no body apart from its output head.")
    return parts[0]


@torch.no_grad()
def _find_form(model: PreTrainedModel, linear: nn.Linear) -> tuple[float, float | None]:
    # Some families scale the logits (Cohere; Granite divides by `logits_scaling`, HyperCLOVA X
    # multiplies by it) or cap them (Gemma 2, NanoChat). What the configuration names is tried, and
    # taken if it gives the model's own logits, on states that are stretched until a cap would show.
    ids = torch.arange(min(8, linear.weight.shape[0]), device=model.device)[None]
    try:
        states: Tensor = body_of(model)(input_ids=ids, use_cache=False).last_hidden_state
        plain: Tensor = linear(states)
        stretch = max(1.0, _STRETCH / max(float(plain.abs().max()), 1e-6))
        own_logits = {factor: _own_logits(model, linear, ids, factor) for factor in (1.0, stretch)}
        for scale, cap in _candidates(model):
            head = OutputHead(linear, scale, cap)
            if all(_alike(head(states * factor), logits) for factor, logits in own_logits.items()):
                return scale, cap
    except UsageError:
        raise
    except Exception as error:  # families built in other ways raise anything
        raise UsageError(
            f"{type(model).__name__} cannot be trained: its forward pass on a row of "
            f"{ids.shape[1]} tokens fails ({str(error).splitlines()[0][:200]})."
        ) from error
    raise UsageError(
        f"{type(model).__name__} computes its logits from its last hidden states in a way that the "
        "learner does not know (no scale or cap that its configuration names): take a model of "
        "another family."
    )


def _own_logits(model: PreTrainedModel, linear: nn.Linear, ids: Tensor, stretch: float) -> Tensor:
    def pull(_head: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return args[0] * stretch, *args[1:]

    handle = linear.register_forward_pre_hook(pull)
    try:
        logits: Tensor = model(input_ids=ids, use_cache=False).logits
    finally:
        handle.remove()
    return logits


def _candidates(model: PreTrainedModel) -> list[tuple[float, float | None]]:
    # the plain head first
    config = model.config.get_text_config(decoder=True)

    def numbers(names: tuple[str, ...]) -> list[float]:
        values = (getattr(config, name, None) for name in names)
        return [float(value) for value in values if isinstance(value, (int, float)) and value]

    scales = [1.0, *(scale for value in numbers(_SCALES) for scale in (value, 1 / value))]
    if getattr(config, "dim_model_base", None):  # MiniCPM
        scales.append(config.dim_model_base / config.hidden_size)
    return list(itertools.product(scales, (None, *numbers(_CAPS))))


def _alike(left: Tensor, right: Tensor) -> bool:
    if left.shape != right.shape:
        return False
    close = 2e-2 if left.dtype in (torch.bfloat16, torch.float16) else 1e-4
    size = float(right.abs().max())
    return torch.allclose(left.float(), right.float(), rtol=close, atol=close * max(1.0, size) / 4)


Entropy = Literal["none", "value", "grad"]
"""`none`: not computed; `value`: as numbers; `grad`: with gradients, for an entropy bonus."""

_BLOCK_ELEMENTS = 2**18
"""Logits that are turned into probabilities at once on a CPU: 1 MiB in float32."""
CHUNK_ELEMENTS = 2**25  # logits of one chunk where nothing else is asked for: 128 MiB in float32


class TargetLogps(NamedTuple):
    """Statistics of output tokens and of the distributions that they were drawn from."""

    logps: Tensor  # (tokens,)
    entropies: Tensor  # (states,), in nats; empty where they were not asked for


class LogitForm(NamedTuple):
    """Products z with the vocabulary become cap * tanh(scale * z / cap) / temperature."""

    temperature: float
    scale: float
    cap: float | None


def chunk_of(vocabulary: int, chunk: int) -> int:
    """States per chunk: `chunk`, or where it is 0 as many as `CHUNK_ELEMENTS` admits."""
    return chunk or max(1, CHUNK_ELEMENTS // vocabulary)


def target_logps(
    states: Tensor,
    head: OutputHead,
    sources: Tensor,
    targets: Tensor,
    temperature: float,
    entropy: Entropy,
    chunk: int,
) -> TargetLogps:
    """Log-probs of `targets` (tokens,), each predicted by its state in `sources`; float32."""
    dtype = product_dtype(states.device, states.dtype)
    linear, rounded = head.linear, None
    if isinstance(linear, LowerLinear):
        rounded = linear.rounded.weight, linear.rounded.bias
    order = torch.argsort(sources, stable=True)
    logps, entropies = _TargetLogps.apply(
        states.to(dtype), linear.weight, linear.bias, rounded, sources[order], targets[order],
        LogitForm(temperature, head.scale, head.cap), entropy,
        chunk_of(linear.out_features, chunk),
    )  # fmt: skip
    return TargetLogps(torch.empty_like(logps).index_copy(0, order, logps), entropies)


class _TargetLogps(torch.autograd.Function):
    """Log-softmax at the targets, chunk by chunk; `sources` ascend."""

    # The logits of a single chunk are kept for the backward pass; several are computed again, which
    # costs a third more time in the head and bounds its memory. The gradient is written by hand, so
    # that the weight's is summed in place (152 k words, 1024 states: 418 MiB against 1791 MiB).

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None,
        rounded: tuple[Tensor, Tensor | None] | None, sources: Tensor, targets: Tensor,
        form: LogitForm, entropy: Entropy, chunk: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        count = states.shape[0]
        logps = torch.empty(len(targets), dtype=torch.float32, device=states.device)
        entropies = logps.new_empty(0 if entropy == "none" else count)
        totals = logps.new_empty(count)
        stored = None
        edges = _edges(count, sources, chunk)
        weight_now, bias_now = rounded or _cast(weight, bias, states.dtype)
        for low, high, first, last in edges:
            products = nn.functional.linear(states[low:high], weight_now, bias_now)
            for top, end, start, stop in _blocks(low, high, first, last, sources, products):
                scores = _scores(products[top - low : end - low], form)
                totals[top:end] = scores.logsumexp(-1)
                scores -= totals[top:end, None]
                logps[start:stop] = scores[sources[start:stop] - top, targets[start:stop]]
                if entropy != "none":
                    entropies[top:end] = -torch.linalg.vecdot(scores.exp(), scores)
            stored = products if len(edges) == 1 else None
        ctx.save_for_backward(states, weight, bias, sources, targets, totals, entropies, stored)
        ctx.form, ctx.chunk, ctx.bonus, ctx.rounded = form, chunk, entropy == "grad", rounded
        if not ctx.bonus:
            ctx.mark_non_differentiable(entropies)
        return logps, entropies

    @staticmethod
    @once_differentiable  # which forgets the name of `ctx`
    def backward(  # pyrefly: ignore[bad-override]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        grad_logps, grad_entropies = grad_outputs
        states, weight, bias, sources, targets, totals, entropies, stored = ctx.saved_tensors
        wants, form = ctx.needs_input_grad, ctx.form
        grad_states = torch.empty_like(states) if wants[0] else None
        grad_weight: Tensor | None = None
        grad_bias = torch.zeros_like(bias) if wants[2] else None
        weight_now, bias_now = ctx.rounded or _cast(weight, bias, states.dtype)
        mass = grad_logps.new_zeros(len(states)).index_add_(0, sources, grad_logps)
        for low, high, first, last in _edges(len(states), sources, ctx.chunk):
            part = states[low:high]
            if stored is None:
                products = nn.functional.linear(part, weight_now, bias_now)
                grad = products
            else:
                products, grad = stored, torch.empty_like(stored)
            for top, end, start, stop in _blocks(low, high, first, last, sources, products):
                scores = products[top - low : end - low]
                if products is stored and stored.dtype == torch.float32:
                    scores = scores.clone()  # log-probs already
                else:
                    scores = _scores(scores, form)
                    scores -= totals[top:end, None]
                slope = _slope(scores, totals[top:end, None], form)  # before it is overwritten
                bonus = None
                if ctx.bonus:
                    bonus = grad_entropies[top:end, None], entropies[top:end, None]
                block = _softmax_gradient(scores, mass[top:end, None], bonus)
                index = (sources[start:stop] - top, targets[start:stop])
                block.index_put_(index, grad_logps[start:stop], accumulate=True)
                block.div_(form.temperature)
                if form.scale != 1.0:
                    block.mul_(form.scale)
                grad[top - low : end - low] = block if slope is None else block.mul_(slope)
            if grad_states is not None:
                grad_states[low:high] = grad @ weight_now
            if wants[1] and grad_weight is None:
                grad_weight = (grad.T @ part).to(weight.dtype)
            elif grad_weight is not None and grad.dtype == grad_weight.dtype:
                grad_weight.addmm_(grad.T, part)
            elif grad_weight is not None:
                _add(grad_weight, grad.T @ part)
            if grad_bias is not None:
                grad_bias += grad.sum(0)
        return grad_states, grad_weight, grad_bias, None, None, None, None, None, None


def _cast(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    return weight.to(dtype), None if bias is None else bias.to(dtype)


def _add(total: Tensor, part: Tensor) -> None:
    # In place, some rows at a time: torch converts `part` to the number format of `total` first.
    for rows in cached_parts(total):
        total[rows] += part[rows]


def _softmax_gradient(scores: Tensor, mass: Tensor, bonus: tuple[Tensor, Tensor] | None) -> Tensor:
    # Of all scores, targets or not, in their place: with p the softmax, -p (mass + g (log p + H)).
    # `mass` is the sum of the gradients of a state's log-probs, `bonus` is (g, H).
    if bonus is None:
        return scores.exp_().mul_(-mass)
    gradient, entropy = bonus
    factor = (scores + entropy).mul_(gradient).add_(mass).neg_()
    return scores.exp_().mul_(factor)


def _scores(products: Tensor, form: LogitForm) -> Tensor:
    # In place of `products` where these are float32.
    scores = products.float()
    if form.scale != 1.0:
        scores.mul_(form.scale)
    if form.cap is not None:
        scores.div_(form.cap).tanh_().mul_(form.cap)
    return scores if form.temperature == 1.0 else scores.div_(form.temperature)


def _slope(logps: Tensor, totals: Tensor, form: LogitForm) -> Tensor | None:
    # The derivative of the cap is 1 - tanh².
    if form.cap is None:
        return None
    tanh = (logps + totals).mul_(form.temperature / form.cap)
    return 1 - tanh.square_()


def _edges(count: int, sources: Tensor, chunk: int) -> list[tuple[int, int, int, int]]:
    # Chunks of states [low, high) with their tokens [first, last).
    return _with_tokens([*range(0, max(count, 1), chunk), count], sources)


def _blocks(
    low: int, high: int, first: int, last: int, sources: Tensor, products: Tensor
) -> list[tuple[int, int, int, int]]:
    # The same of a chunk's parts that stay in a CPU's cache while a row's products become
    # probabilities; fresh memory for the whole chunk costs more than the arithmetic. Another device
    # takes the chunk as it is. No part is a single row, whose sums several threads would share.
    rows = max(2, _BLOCK_ELEMENTS // products.shape[1])
    parts = (high - low) // rows if products.device.type == "cpu" else 1
    if parts < 2:
        return [(low, high, first, last)]
    return _with_tokens([low + (high - low) * part // parts for part in range(parts + 1)], sources)


def _with_tokens(edges: list[int], sources: Tensor) -> list[tuple[int, int, int, int]]:
    firsts = torch.searchsorted(sources, torch.tensor(edges, device=sources.device)).tolist()
    return list(zip(edges, edges[1:], firsts, firsts[1:], strict=False))
