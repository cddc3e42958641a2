"""Gradients as short vectors that keep inner products.

A gradient of at most `LARGEST` numbers is kept as it is. A longer one is folded: number i is added,
with a random sign, to index i mod `LARGEST` (a count sketch: Charikar, Chen, Farach-Colton, Theor.
Comput. Sci. 312 (2004) 3). Inner products of folded vectors are unbiased estimates of the original
ones, with a deviation of about |a| |b| / sqrt(LARGEST), 0.07 % of the norms, so gradients of a
large model can be compared in little memory. `LARGEST` is a prime: with a multiple of the width of
a layer, all numbers of one column of its matrix would share a few indices.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LARGEST = 2_097_143  # the largest prime below 2**21
_PRIME = 1_000_003  # every tensor of a model gets separate signs


def sketch(gradient: Sequence[Tensor], largest: int = LARGEST, seed: int = 0) -> Tensor:
    """The gradient as one vector of min(number of weights, `largest`) float32.

    Equal shapes and seeds are folded alike; only such vectors can be compared.

    Args:
        gradient: one tensor a parameter.
        largest: longest vector.
        seed: of the signs.
    """
    total = sum(part.numel() for part in gradient)
    if total <= largest:
        return torch.cat([part.flatten().float() for part in gradient])
    folded = torch.zeros(largest, device=gradient[0].device)
    index = 0
    for number, part in enumerate(gradient):
        signed = part.flatten().float() * _signs(part, seed * _PRIME + number)
        offset = 0
        while offset < len(signed):
            piece = signed[offset : offset + largest - index]
            folded[index : index + len(piece)] += piece
            offset += len(piece)
            index = (index + len(piece)) % largest
    return folded


def _signs(like: Tensor, seed: int) -> Tensor:
    """+1 or -1 for every number of `like`, (numbers,)."""
    generator = torch.Generator(like.device).manual_seed(seed)
    drawn = torch.randint(
        0, 2, (like.numel(),), generator=generator, device=like.device, dtype=torch.int8
    )
    return drawn.mul_(2).sub_(1)
