"""Sampling from logits with noise that belongs to the request, not to the batch.

Token t of a request is drawn by inverting the cumulative distribution at one uniform number that
is a function of (request key, t). A request therefore draws the same tokens alone and in any
batch, but for the float noise of the logits.
"""

from __future__ import annotations

import numpy as np
import torch

from flowzoo.agents.policy import Sampling

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
        before = mass.cumsum(-1) - mass  # the first token has 0 before it, so one always stays
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
    """The first place (rows, 1) whose cumulative probability exceeds `noise`."""
    # float64, because float32 sums over a large vocabulary lose its rare tokens
    heights = logps.double().exp_()
    torch.cumsum(heights, -1, out=heights)
    total = heights[:, -1:]
    target = torch.from_numpy(noise).to(logps.device)[:, None] * total
    # Rounding must not lift the target to the total: nothing exceeds that.
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(heights, target, right=True).clamp_max_(logps.shape[1] - 1)
