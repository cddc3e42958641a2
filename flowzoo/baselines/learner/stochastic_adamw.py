"""AdamW with weights and moments in bfloat16."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flowzoo.aliases import ParamGroup
from flowzoo.seeding import key_int

_AT_ONCE = 2**22
"""Weights that are moved at a time on a GPU: what is computed in float32 of an embedding of 152k
words would else take more than all weights."""
_BLOCK = 512
"""Weights that a compiled step has in float32 at once."""
_PER_THREAD = 2**18
"""Fewest weights of a thread, which take as long as starting some."""
_SEEDS = 2**63 - 1
"""Seeds of torch's generators and integers of its operations have 63 bits."""


class StochasticAdamW(torch.optim.Optimizer):
    """AdamW (arXiv 1711.05101) with weights and moments in bfloat16, rounded at random."""

    # Rounded to the nearest, steps below 1/256 of a weight would be lost; at random the mean is
    # exact (arXiv 2010.06192). The random numbers are a function of the count of steps, which is
    # part of the state, so that a resumed run rounds as it would have.

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "steps": 0
        }  # fmt: skip
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for number, group in enumerate(self.param_groups):
            group["steps"] += 1
            for index, parameter in enumerate(group["params"]):
                if parameter.grad is not None:
                    key = key_int("rounding", number, group["steps"], index) & _SEEDS
                    self._move(parameter, parameter.grad, group, key)
        return loss

    def _move(self, parameter: nn.Parameter, grad: Tensor, group: ParamGroup, key: int) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        parts = parameter.detach(), grad, state["exp_avg"], state["exp_avg_sq"]
        (beta1, beta2), lr, step = group["betas"], group["lr"], state["step"]
        factors = [
            1 - beta1, beta2, 1 - lr * group["weight_decay"], 1 / (1 - beta2**step), group["eps"],
            -lr / (1 - beta1**step),
        ]  # fmt: skip
        plain = not hasattr(parameter, "full_tensor")  # not sharded over ranks
        if parameter.device.type == "cpu" and plain and all(x.is_contiguous() for x in parts):
            _compiled_step(*parts, factors, key)
        else:
            step_in_parts(parts, factors, key)


def step_in_parts(tensors: Sequence[Tensor], factors: Sequence[float], key: int) -> None:
    """Move weights by their gradients and moments, in place, with torch's operations.

    Args:
        tensors: weights, gradients, and first and second moments, of one shape.
        factors: 1 - beta1, beta2, what decay leaves of a weight, the correction of the second
            moment, epsilon, and the step's length with its sign.
        key: seed of the rounding.
    """
    flat = [torch.atleast_1d(tensor) for tensor in tensors]
    weight = flat[0]
    noise = torch.Generator(weight.device).manual_seed(key)
    rows = max(1, _AT_ONCE * len(weight) // max(1, weight.numel()))
    slope_share, square_share, remaining, correction, epsilon, length = factors
    for part in zip(*(tensor.split(rows) for tensor in flat), strict=True):
        slope = part[1].float()
        first = part[2].float().lerp_(slope, slope_share)
        second = part[3].float().mul_(square_share)
        second.addcmul_(slope, slope, value=1 - square_share)
        size = (second * correction).sqrt_().add_(epsilon)
        moved = part[0].float().mul_(remaining).addcdiv_(first, size, value=length)
        for stored, exact in ((part[0], moved), (part[2], first), (part[3], second)):
            stored.copy_(stochastic_bfloat16(exact, noise))


def stochastic_bfloat16(exact: Tensor, noise: torch.Generator) -> Tensor:
    """Round float32 to bfloat16, up or down at random, so that the mean is `exact`."""
    # A bfloat16 lacks the lower 16 bits: a random number of 16 bits is added to them, which carries
    # with the odds of rounding away from zero, and the rest is cut off.
    bits = exact.contiguous().view(torch.int32)
    bits = bits + torch.randint(
        0, 1 << 16, bits.shape, dtype=torch.int32, device=bits.device, generator=noise
    )
    return (bits & -(1 << 16)).view(torch.float32).bfloat16()


@torch.library.custom_op("flowzoo::stochastic_step", mutates_args=("weight", "mean", "square"))
def _compiled_step(
    weight: Tensor, grad: Tensor, mean: Tensor, square: Tensor, factors: list[float], key: int
) -> None:
    # `step_in_parts` on a CPU, in one pass: torch's operations take fourteen times as long, most
    # of it for random numbers. Noise is a function of key and counter, so threads change nothing.
    arrays = [tensor.flatten().view(torch.int16).numpy() for tensor in (weight, grad, mean, square)]
    numbers = np.array(factors, np.float32)
    keys = np.array([key & 0xFFFFFFFF, key >> 32], np.uint32)
    count = weight.numel()
    size = max(_PER_THREAD, -(-count // torch.get_num_threads()))

    def move(first: int) -> None:
        parts = [array[first : first + size] for array in arrays]
        _kernel()(*parts, numbers, keys, np.uint32(first & 0xFFFFFFFF))

    if count <= size:
        move(0)
        return
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(move, range(0, count, size)))


@_compiled_step.register_fake
def _(
    weight: Tensor, grad: Tensor, mean: Tensor, square: Tensor, factors: list[float], key: int
) -> None:
    return None


@cache
def _kernel() -> Callable[..., None]:
    from numba import njit

    return njit(cache=True, nogil=True, error_model="numpy")(_step_kernel)


def _step_kernel(
    weight: np.ndarray, grad: np.ndarray, mean: np.ndarray, square: np.ndarray,
    factors: np.ndarray, keys: np.ndarray, first_counter: int,
) -> None:  # fmt: skip
    slope_share, square_share, remaining = factors[0], factors[1], factors[2]
    correction, epsilon, length = factors[3], factors[4], factors[5]
    new_share = np.float32(1.0) - square_share
    w, g = np.empty(_BLOCK, np.float32), np.empty(_BLOCK, np.float32)
    m, v = np.empty(_BLOCK, np.float32), np.empty(_BLOCK, np.float32)
    w_bits, g_bits = w.view(np.int32), g.view(np.int32)
    m_bits, v_bits = m.view(np.int32), v.view(np.int32)
    for start in range(0, len(weight), _BLOCK):
        size = min(_BLOCK, len(weight) - start)
        weights, grads = weight[start : start + size], grad[start : start + size]
        means, squares = mean[start : start + size], square[start : start + size]
        for k in range(size):
            w_bits[k] = np.int32(weights[k]) << np.int32(16)
            g_bits[k] = np.int32(grads[k]) << np.int32(16)
            m_bits[k] = np.int32(means[k]) << np.int32(16)
            v_bits[k] = np.int32(squares[k]) << np.int32(16)
        for k in range(size):
            slope = g[k]
            m[k] += slope_share * (slope - m[k])
            v[k] = square_share * v[k] + new_share * slope * slope
            w[k] = remaining * w[k] + length * m[k] / (np.sqrt(correction * v[k]) + epsilon)
        counter = np.uint32(first_counter + start)
        for k in range(size):
            # An integer hash (lowbias32 of C. Wellons' hash prospector), keyed twice.
            bits = np.uint32(np.uint32(counter + np.uint32(k)) ^ keys[0])
            bits = np.uint32((bits ^ (bits >> np.uint32(16))) * np.uint32(0x7FEB352D))
            bits = np.uint32((bits ^ (bits >> np.uint32(15))) + keys[1])
            bits = np.uint32(bits * np.uint32(0x846CA68B))
            bits = np.uint32(bits ^ (bits >> np.uint32(16)))
            other = np.uint32(bits * np.uint32(0x9E3779B1)) >> np.uint32(16)
            weights[k] = np.int16((w_bits[k] + np.int32(bits & np.uint32(0xFFFF))) >> np.int32(16))
            means[k] = np.int16((m_bits[k] + np.int32(bits >> np.uint32(16))) >> np.int32(16))
            squares[k] = np.int16((v_bits[k] + np.int32(other)) >> np.int32(16))
