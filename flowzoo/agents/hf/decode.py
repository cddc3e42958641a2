"""The decode loop: token rows in, sampled tokens and their log-probabilities out.

Token t of a request is drawn by inverting the cumulative distribution at one uniform number that is
a function of (request key, t): the same tokens alone and in any batch, but for the float noise of
the logits.
"""

import inspect
import json
import logging
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from flowzoo.agents.hf.attention import PreallocatedLayer, decoding, new_cache
from flowzoo.agents.policy import Sampling
from flowzoo.agents.traits import borders_of, context_of
from flowzoo.errors import FlowzooError, UsageError

_log = logging.getLogger(__name__)


def model_fingerprint(model: PreTrainedModel) -> Hashable:
    """Fingerprint of a transformers model's computation, without the values of its weights."""
    # Forward passes are checked once per fingerprint in a process: isolated policies are many equal
    # models.
    config = {
        name: value for name, value in model.config.to_dict().items() if name != "_name_or_path"
    }
    device = model.device.type
    return (
        type(model), json.dumps(config, sort_keys=True, default=str), model.dtype, device,
        model.config._attn_implementation, torch.is_autocast_enabled(device),
        frozenset(type(part) for part in model.modules()),
    )  # fmt: skip


# Constants of splitmix64 (Steele, Lea & Flood, "Fast splittable pseudorandom number generators",
# OOPSLA 2014): a counter-based generator whose output is a mix of key + counter * _GAMMA.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def uniforms(keys: np.ndarray, step: int) -> np.ndarray:
    """Float64 numbers in [0, 1) for uint64 `keys` (rows,) at token index `step` from 0."""
    counter = (step + 1) * int(_GAMMA) & 0xFFFFFFFFFFFFFFFF  # wraps as uint64 does
    bits = keys + np.uint64(counter)
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
    bits = bits ^ (bits >> np.uint64(31))
    return (bits >> np.uint64(11)) * 2.0**-53


def top_k_top_p(scores: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply top-k, then top-p on what is left.

    Returns:
        Scores sorted downwards with -inf for the tokens that are out, and the token ids in that
        order; both (rows, tokens considered).
    """
    ordered, order = scores.sort(dim=-1, descending=True, stable=True)
    if sampling.top_k:
        ordered, order = ordered[:, : sampling.top_k], order[:, : sampling.top_k]
    if sampling.top_p < 1.0:
        mass = ordered.softmax(-1)
        before = _running_sums(mass) - mass  # the first token has 0 before it, so one always stays
        ordered = ordered.masked_fill(before >= sampling.top_p, float("-inf"))
    return ordered, order


def draw(
    logits: torch.Tensor, noise: np.ndarray, sampling: Sampling
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token per row.

    Args:
        logits: (rows, vocabulary), any float type.
        noise: (rows,) numbers in [0, 1); unused at temperature 0.
        sampling: temperature, top-p and top-k.

    Returns:
        Token ids (rows,) and their float32 log-probabilities (rows,) under the distribution drawn
        from: after temperature, top-k and top-p. At temperature 0 the most likely token, with its
        log-probability under temperature 1 and no cut.
    """
    logits = logits.float()
    if sampling.temperature == 0.0:
        tokens = logits.argmax(-1, keepdim=True)
        return tokens[:, 0], logits.log_softmax(-1).gather(1, tokens)[:, 0]
    scores = logits if sampling.temperature == 1.0 else logits / sampling.temperature
    if not (sampling.top_k or sampling.top_p < 1.0):
        logps = scores.log_softmax(-1)
        tokens = _invert(logps, noise)
        return tokens[:, 0], logps.gather(1, tokens)[:, 0]
    scores, order = top_k_top_p(scores, sampling)
    logps = scores.log_softmax(-1)
    places = _invert(logps, noise)
    return order.gather(1, places)[:, 0], logps.gather(1, places)[:, 0]


def _invert(logps: torch.Tensor, noise: np.ndarray) -> torch.Tensor:
    # The first index (rows, 1) whose cumulative probability exceeds `noise`.
    # float64, because float32 sums over a large vocabulary lose its rare tokens
    heights = logps.double().exp_()
    _running_sums(heights, out=heights)
    total = heights[:, -1:]
    target = torch.from_numpy(noise).to(logps.device)[:, None] * total
    # Rounding must not lift the target to the total: nothing exceeds that.
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(heights, target, right=True).clamp_max_(logps.shape[1] - 1)


def _running_sums(values: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    # (rows, columns). A GPU adds up the rows of a matrix in a fixed order, but torch refuses where
    # it is asked for one. The mode is the process's, so it changes only where it must.
    if values.device.type == "cpu":
        return torch.cumsum(values, -1, out=out)
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")
    try:
        return torch.cumsum(values, -1, out=out)
    finally:
        torch.set_deterministic_debug_mode(mode)


_READ_AT_ONCE = 4096
"""Tokens of prompts, pads included, that go through the model at once per CPU thread, so that a
layer's output stays in the CPU's cache."""
_FEW = 8
"""Fewest rows of a part: one to three rows take another matrix kernel, with other floats."""
_PADS = 16
"""Pads are left out in multiples of this, which keeps every token in its vector lane: with one
thread, sums over keys have the same floats; with several, matrices are cut by their height."""
_SHARED_LEAST = 16
"""Fewest tokens of a prefix that is worth a separate pass."""
_CLOSE, _CLOSE_LOWER = 1e-3, 0.3
"""Most that log-probs may differ by for rounding: in float32, and in lower precision."""
_ASKED, _WORK = 2**14, 6e11
"""Longest border that is asked at, and on a CPU the most weights times tokens."""
_KEPT = 64
"""Tokens of a prompt up to which all of its logits are computed for a comparison."""
_decodable: set[Hashable] = set()
"""Fingerprints of models that passed `check_decoding`."""


class GenerationStoppedError(FlowzooError):
    """The caller asked the loop to end early; nothing was returned."""


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """One sequence to continue: prompt ids (at least one), 64-bit noise key, most new tokens."""

    prompt: tuple[int, ...]
    key: int
    cap: int


class DecodeOutput(NamedTuple):
    """New tokens (the stop token included), their log-probabilities, and whether one stopped it."""

    tokens: list[int]
    logps: list[float]
    stopped: bool


class _DecodeBatch:
    """The rows still in the model: their index, noise key, length so far, mask and cache."""

    def __init__(
        self, model: PreTrainedModel, rows: Sequence[DecodeRequest], share_prefixes: bool = False
    ) -> None:
        order = sorted(range(len(rows)), key=lambda i: len(rows[i].prompt))
        rows = [rows[i] for i in order]
        # Equal prompts, of a group's samples or a problem's voters, are read once.
        distinct = list(dict.fromkeys(row.prompt for row in rows))
        unique = {prompt: index for index, prompt in enumerate(distinct)}
        self.model, self.device = model, model.device
        self.cache: Any = new_cache(model)
        names = inspect.signature(model.forward).parameters
        # transformers 5.24 calls both kinds `cache`.
        arguments = ("cache", "cache_params", "past_key_values")
        self.cache_argument = next((name for name in arguments if name in names), arguments[-1])
        self.recurrent = self.cache_argument == "cache_params" or (
            self.cache_argument == "cache" and model._is_stateful and "position_ids" not in names
        )
        shared = self._shared_prefix(distinct) if share_prefixes else 0
        suffixes = [prompt[shared:] for prompt in distinct]
        ids = torch.zeros(len(suffixes), max(map(len, suffixes)), dtype=torch.long)
        for index, suffix in enumerate(suffixes):
            ids[index, -len(suffix) :] = torch.tensor(suffix)
        self.prompt_tokens = shared + sum(map(len, suffixes))
        if shared:
            self._read_prefix(distinct[0][:shared], len(distinct))
        mask = _left_mask([len(suffix) for suffix in suffixes], self.device)
        self.mask = torch.nn.functional.pad(mask, (shared, 0), value=1)
        self.logits = self._read(ids.to(self.device), shared)
        self.idx = np.array(order)
        self.keys = np.array([row.key for row in rows], dtype=np.uint64)
        self.lengths = torch.tensor([len(row.prompt) for row in rows], device=self.device)
        places = [unique[row.prompt] for row in rows]
        if len(unique) < len(rows):
            self._select(torch.tensor(places, device=self.device))

    def _has_plain_cache(self) -> bool:
        layers = getattr(self.cache, "layers", ())
        plain = bool(layers) and all(type(layer) is PreallocatedLayer for layer in layers)
        return plain and not self.recurrent

    def _shared_prefix(self, prompts: Sequence[tuple[int, ...]]) -> int:
        # Length of the prefix of all prompts that is read once; every prompt has tokens after it.
        # Suffixes are padded after it, so windows of attention that count positions would be wrong.
        columns = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*prompts, strict=False))
        shared = min(sum(1 for _ in columns), min(map(len, prompts)) - 1)
        width = max(map(len, prompts)) - shared
        most = _READ_AT_ONCE * torch.get_num_threads() if self.device.type == "cpu" else math.inf
        fits = len(prompts) * width <= most
        several = len(prompts) > 1 and shared >= _SHARED_LEAST
        windows = "local" in (getattr(self.model.config, "attention_layers", None) or ())  # GPT-Neo
        return shared if several and fits and self._has_plain_cache() and not windows else 0

    def _read_prefix(self, prefix: tuple[int, ...], count: int) -> None:
        # into the cache, for `count` rows
        ids = torch.tensor([prefix], device=self.device)
        self._forward(
            ids, torch.arange(len(prefix), device=self.device)[None], torch.ones_like(ids)
        )
        self.cache.reorder_cache(torch.zeros(count, dtype=torch.long, device=self.device))

    def _read(self, ids: torch.Tensor, start: int) -> torch.Tensor:
        # (rows, width) from position `start`, in order of length. On a CPU some rows are read at a
        # time, without the pads that all of them have.
        count, width = ids.shape
        positions = (self.mask.cumsum(-1) - 1).clamp_min(0)[:, start:]
        parts = math.ceil(count * width / (_READ_AT_ONCE * torch.get_num_threads()))
        parts = min(parts, count // _FEW)
        if parts < 2 or self.device.type != "cpu" or not self._has_plain_cache():
            return self._forward(ids, positions, self.mask)
        layers = self.cache.layers
        pads = width - self.mask.sum(1)
        logits: list[torch.Tensor] = []
        for part in range(parts):
            rows = slice(part * count // parts, (part + 1) * count // parts)
            first = int(pads[rows].min()) // _PADS * _PADS
            for layer in layers:
                layer.read_rows(rows, count, first)
            window = rows, slice(first, None)
            logits.append(self._forward(ids[window], positions[window], self.mask[window]))
        for layer in layers:
            layer.whole()
        return torch.cat(logits)

    def _forward(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        if self.recurrent:  # Mamba: it has no positions, and its mask is for prompts alone
            padding = mask if ids.shape[1] == mask.shape[1] else None
            cached = {self.cache_argument: self.cache, "attention_mask": padding}
        else:
            cached = {
                self.cache_argument: self.cache,
                "attention_mask": mask,
                "position_ids": positions,
            }
        out = self.model(input_ids=ids, use_cache=True, logits_to_keep=1, **cached)
        return out.logits[:, -1]

    def _select(self, places: torch.Tensor) -> None:
        self.cache.reorder_cache(places)  # also of states that are not keys and values
        self.mask, self.logits = self.mask[places], self.logits[places]

    def keep(self, alive: np.ndarray) -> None:
        """Drop the rows where `alive` is False."""
        places = torch.from_numpy(np.flatnonzero(alive)).to(self.device)
        self._select(places)
        self.idx, self.keys, self.lengths = self.idx[alive], self.keys[alive], self.lengths[places]

    def advance(self, tokens: torch.Tensor, alive: np.ndarray) -> None:
        """Feed one token per row (rows,); rows that have ended keep their position."""
        # Beyond the context a table of positions has no entry.
        self.mask = torch.nn.functional.pad(self.mask, (0, 1), value=1)
        self.logits = self._forward(tokens[:, None], self.lengths[:, None], self.mask)
        self.lengths = self.lengths + torch.from_numpy(alive).to(self.device)


def _left_mask(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    # (rows, longest) integers: 1 on the last `lengths[i]` positions of row i.
    places = torch.arange(max(lengths)).flip(0)[None, :]
    return (places < torch.tensor(lengths)[:, None]).long().to(device)


@torch.no_grad()
def check_decoding(model: PreTrainedModel, share_prefixes: bool = False) -> None:
    """Raise `UsageError` unless `decode` samples from `model` as its own forward pass would.

    Of a model that samples in int8 the exact weights are checked: noise of float32 moves numbers
    across int8 levels, by 0.3 in the log-probs of a trained SmolLM2-135M.
    """
    # Prompts of unequal length in one batch, of which one ends early, are continued by a few
    # tokens, and the log-probs are compared with a forward pass of each row alone: short ones, and
    # at every border one that crosses it and one that is beyond. Once per fingerprint.
    kind = model_fingerprint(model), share_prefixes
    if kind in _decodable:
        return
    start = (1, 2, 3, 2) * (_SHARED_LEAST // 4) if share_prefixes else ()
    short = [(3,), (1, 2, 3, 1, 2, 2, 1, 3, 3), (2, 1), (2, 1)]
    batches: list[list[tuple[int, ...]]] = [[(*start, *prompt) for prompt in short]]
    near = near_borders(model)
    if far := borders_of(model.config)[len(near) :]:
        _log.warning("rows of %d tokens and more are not compared: it would take long", far[0])
    most = (context_of(model.config) or _ASKED) - 5
    for border in near:
        long = (*start, *(1, 2, 3, 1, 2, 2, 1, 3, 3) * border)
        sizes = (max(1, min(size, most)) for size in (border + 9, border - 2))
        batches.append([*(long[:size] for size in sizes), (*start, 3)])
    name = type(model).__name__
    try:
        gaps = [gap for batch in batches for gap in _gaps(model, batch, share_prefixes)]
    except Exception as error:  # families differ, and so do their errors
        why = str(error).splitlines()[0][:200]
        raise UsageError(
            f"the transformers engine cannot sample from {name} ({why}): use `engine` vllm."
        ) from error
    lower = torch.is_autocast_enabled(model.device.type) or model.dtype != torch.float32
    if not max(gaps) <= (_CLOSE_LOWER if lower else _CLOSE):
        raise UsageError(
            f"the transformers engine samples from {name} in batches otherwise than row by row "
            f"(log-probs differ by {max(gaps):.2g}): use `engine` vllm."
        )
    _decodable.add(kind)


def check_int8(model: PreTrainedModel) -> None:
    """Raise `UsageError` unless `model` runs with the int8 layers that are in it now."""
    row = DecodeRequest(prompt=(1, 2), key=0, cap=2)
    try:
        decode(model, [row], Sampling(), frozenset(), lambda: False)
    except Exception as error:  # a model may read the weights of its layers itself
        raise UsageError(
            f"{type(model).__name__} cannot be sampled in int8 ({error}): use `engine_dtype` "
            "bfloat16 or float32."
        ) from error


def near_borders(model: PreTrainedModel) -> list[int]:
    """The borders of a model at which its forward passes are compared."""
    work = _WORK / model.num_parameters() if model.device.type == "cpu" else _ASKED
    return [border for border in borders_of(model.config) if border <= min(work, _ASKED)]


def _gaps(
    model: PreTrainedModel, prompts: Sequence[tuple[int, ...]], share_prefixes: bool
) -> list[float]:
    rows = [DecodeRequest(prompt, key, 5 if key else 1) for key, prompt in enumerate(prompts)]
    outputs, _ = decode(model, rows, Sampling(), frozenset(), lambda: False, share_prefixes)
    return [_gap(model, row.prompt, output) for row, output in zip(rows, outputs, strict=True)]


def _gap(model: PreTrainedModel, prompt: tuple[int, ...], output: DecodeOutput) -> float:
    ids = torch.tensor([[*prompt, *output.tokens]], device=model.device)
    # Logits of a long prompt would take much memory.
    options = {"logits_to_keep": len(output.tokens) + 1} if len(prompt) > _KEPT else {}
    logits = model(input_ids=ids, use_cache=False, **options).logits[
        0, -len(output.tokens) - 1 : -1
    ]
    reference = logits.float().log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0]
    return float((reference.cpu() - torch.tensor(output.logps)).abs().max())


def decode(
    model: PreTrainedModel,
    rows: Sequence[DecodeRequest],
    sampling: Sampling,
    stop_ids: frozenset[int],
    cancelled: Callable[[], bool],
    share_prefixes: bool = False,
) -> tuple[list[DecodeOutput], int]:
    """Continue every row until a stop token or its cap.

    Args:
        model: a causal language model of the transformers library.
        rows: one batch; all of it is in memory at once.
        sampling: temperature, top-p, top-k (lengths come from the rows).
        stop_ids: tokens that end a row; the one sampled is part of the result.
        cancelled: asked once per token; True ends the loop.
        share_prefixes: read a prefix that all prompts have once; in float32 this changes a row's
            last bits with the batch.

    Returns:
        One `DecodeOutput` per row, and the number of prompt tokens read.

    Raises:
        GenerationStoppedError: `cancelled` said so.
        FlowzooError: the model's logits are not finite.
    """
    caps = np.array([row.cap for row in rows])
    stops = np.array(sorted(stop_ids), dtype=np.int64)
    tokens = np.zeros((len(rows), caps.max()), dtype=np.int64)
    logps = np.zeros(tokens.shape, dtype=np.float32)
    lengths, stopped = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=bool)
    with torch.inference_mode(), decoding(model):
        batch = _DecodeBatch(model, rows, share_prefixes)
        alive = np.ones(len(rows), dtype=bool)
        for step in range(caps.max()):
            if cancelled():
                raise GenerationStoppedError("generation was cancelled")
            drawn, drawn_logps = draw(batch.logits, uniforms(batch.keys, step), sampling)
            new, new_logps = drawn.cpu().numpy(), drawn_logps.cpu().numpy()
            live = batch.idx[alive]
            tokens[live, step], logps[live, step] = new[alive], new_logps[alive]
            lengths[live] = step + 1
            stopped[live] = np.isin(new[alive], stops)
            alive &= ~(stopped[batch.idx] | (caps[batch.idx] <= step + 1))
            if not alive.any():
                break
            if alive.mean() <= 0.75:  # ended rows stay until a quarter has, since copying costs
                batch.keep(alive)
                drawn, alive = drawn[torch.from_numpy(alive).to(drawn.device)], alive[alive]
            batch.advance(drawn, alive)
    if not np.isfinite(logps).all():
        raise FlowzooError(
            "the model's logits are not finite (its weights hold NaN or infinity, or overflow its "
            "number format): no token can be sampled from them."
        )
    return [
        DecodeOutput(tokens[i, :n].tolist(), logps[i, :n].tolist(), bool(stopped[i]))
        for i, n in enumerate(lengths)
    ], batch.prompt_tokens
