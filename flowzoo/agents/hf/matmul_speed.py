"""Speed of this CPU's matrix products in the number formats of sampling."""

import time
from collections.abc import Callable, Mapping
from timeit import Timer

import torch

from flowzoo.agents.hf.int8_linear import levels_of, quantize
from flowzoo.agents.traits import EngineDType

_ROWS, _WIDTH = 64, 1024
"""Rows of a batch, and the width of a square layer of a small model."""
_BLOCK_S = 0.01
"""Seconds of products between two looks at the clock."""


def matmul_speeds(seconds: float = 1.0) -> Mapping[EngineDType, float]:
    """Measure products of 64 rows with a square matrix of width 1,024 on one core.

    Takes `seconds` in all, and once some more to compile kernels. Other programs slow single blocks
    of products, so the fastest block of each format counts, in CPU time.

    Returns:
        Billions of additions and multiplications per second, by number format.
    """
    rows, weight = torch.randn(_ROWS, _WIDTH), torch.randn(_WIDTH, _WIDTH)
    lower = rows.bfloat16(), weight.bfloat16()
    layer, levels = levels_of(_WIDTH, _WIDTH), quantize(rows)
    layer.take(weight)
    products: dict[EngineDType, Callable[[], torch.Tensor]] = {
        "float32": lambda: rows @ weight,
        "bfloat16": lambda: lower[0] @ lower[1],
        "int8": lambda: layer.multiply(*levels),
    }
    share, threads = seconds / len(products), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {name: _speed(product, share) for name, product in products.items()}
    finally:
        torch.set_num_threads(threads)


def _speed(product: Callable[[], torch.Tensor], seconds: float) -> float:
    product()  # the first one compiles the kernel
    end, timer = time.perf_counter() + seconds, Timer(product, timer=time.process_time)
    count = max(1, int(_BLOCK_S / max(timer.timeit(1), 1e-6)))
    fastest = timer.timeit(count)
    while time.perf_counter() < end:
        fastest = min(fastest, timer.timeit(count))
    return 2e-9 * count * _ROWS * _WIDTH**2 / fastest
