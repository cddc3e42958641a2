"""Gradients as short vectors that keep inner products.

A gradient of at most `LARGEST` numbers is kept as it is. A longer one is folded: number i is added,
with a random sign, to place i mod `LARGEST` (a count sketch: Charikar, Chen, Farach-Colton, Theor.
Comput. Sci. 312 (2004) 3). Inner products of folded vectors are those of the gradients without
bias, with a deviation of about |a| |b| / sqrt(LARGEST), 0.07 % of the norms. So many gradients of
a large model can be compared in little memory. `LARGEST` is a prime: were it a multiple of the
width of a layer, all numbers of one column of its matrix would meet in the same few places.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LARGEST = 2_097_143  # the largest prime below 2**21
_PRIME = 1_000_003  # tensors of one model get signs of their own


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
    place = 0
    for number, part in enumerate(gradient):
        signed = part.flatten().float() * _signs(part, seed * _PRIME + number)
        taken = 0
        while taken < len(signed):
            piece = signed[taken : taken + largest - place]
            folded[place : place + len(piece)] += piece
            taken += len(piece)
            place = (place + len(piece)) % largest
    return folded


def _signs(like: Tensor, seed: int) -> Tensor:
    """+1 or -1 for every number of `like`, (numbers,)."""
    generator = torch.Generator(like.device).manual_seed(seed)
    drawn = torch.randint(
        0, 2, (like.numel(),), generator=generator, device=like.device, dtype=torch.int8
    )
    return drawn.mul_(2).sub_(1)
