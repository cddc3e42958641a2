"""Linear layers in int8: their levels and scales, in the order that a CPU multiplies best.

Products of integers are exact, so every order gives the same results.
"""

import ctypes
import math
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from timeit import Timer
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from flowzoo.agents.hf.attention import cached_parts
from flowzoo.agents.hf.int8_kernels import (
    BLOCK,
    TILE,
    quantize_packed,
    quantize_rows,
)
from flowzoo.agents.hf.int8_product import (
    ITEM_SIZES,
    Instructions,
    instructions,
    multiply_packed,
    product,
)
from flowzoo.agents.traits import EngineDType
from flowzoo.errors import UsageError

_PER_THREAD = 2**18
"""Minimum multiplications per thread, about 5 µs of work."""


class LastInput:
    """The input that was quantized last: layers that read the same tensor do it once."""

    # Only the last is kept, so that no more than one input lives longer than without this.
    # `_version` is not asked: tensors of inference mode have none.

    def __init__(self) -> None:
        self.value: tuple[Tensor, np.ndarray, np.ndarray] | None = None
        """Input, its int8 levels and their scales."""


class Int8Linear(nn.Module):
    """A linear layer with int8 weights that quantizes its input, one scale per row of each.

    Symmetric vector-wise quantization (LLM.int8(), arXiv:2208.07339, section 3): with
    s = max|v| / 127 of a row v, q = round(v / s), and y = (q_x q_w) s_x s_w + b. Both sides are
    rotated by a Hadamard matrix first, which leaves products as they are and spreads the few large
    features of a row (QuaRot, arXiv:2404.00456, section 3). Sums of products are exact integers and
    no row has another's scale, so rows of a batch do not change each other.
    """

    # Features k, k + n, k + 2 n, … are rotated together, where n is the width over the block: a
    # butterfly then adds neighbors to neighbors, which CPUs do several at a time.

    def __init__(self, source: nn.Linear, last_input: LastInput | None = None) -> None:
        super().__init__()
        self._last_input = last_input or LastInput()
        self.out_features = source.out_features
        self.levels = levels_of(source.out_features, source.in_features)
        self.bias: Tensor | None = None

    @torch.no_grad()
    def take(self, source: nn.Linear) -> None:
        """Quantize the weights of `source`; a bias stays in float32."""
        self.levels.take(source.weight.detach())
        self.bias = None if source.bias is None else source.bias.detach().float().clone()

    @torch.no_grad()
    def holds(self, source: nn.Linear) -> bool:
        """Return True if levels, scales and bias equal what `source` gives."""
        if source.bias is not None and not torch.equal(
            cast(Tensor, self.bias), source.bias.float()
        ):
            return False
        fresh = levels_of(source.out_features, source.in_features)
        fresh.take(source.weight.detach())
        pairs = zip(fresh.stored, self.levels.stored, strict=True)
        return all(torch.equal(*pair) for pair in pairs)

    def _save_to_state_dict(self, *args: object, **kwargs: object) -> None:
        raise UsageError("a model with int8 layers cannot be saved: load it in float32.")

    def forward(self, hidden: Tensor) -> Tensor:
        """Multiply (..., in_features) in int8; the result has the input's number format."""
        quantized = self._last_input.value
        if quantized is None or quantized[0] is not hidden:
            quantized = self._last_input.value = hidden, *quantize(hidden.flatten(0, -2))
        _, levels, scales = quantized
        out = self.levels.multiply(levels, scales)
        if self.bias is not None:
            out += self.bias
        return out.to(hidden.dtype).view(*hidden.shape[:-1], self.out_features)


def quantize(rows: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Int8 levels (rows, width) of `rows` after rotation, and their float32 scales (rows,)."""
    exact = rows.float().contiguous().numpy()
    levels, scales = np.empty(exact.shape, np.int8), np.empty(len(exact), np.float32)
    quantize_rows(exact, math.gcd(exact.shape[1], BLOCK), levels, scales)
    return levels, scales


def levels_of(out_features: int, in_features: int) -> "PlainLevels | PackedLevels":
    """Empty storage for weights, in the layout that is fastest on this CPU."""
    kind = instructions()
    return PackedLevels(out_features, in_features, kind) if kind else PlainLevels()


class PlainLevels:
    """Levels row by row, which torch multiplies."""

    @property
    def stored(self) -> tuple[Tensor, Tensor]:
        """Levels (out_features, in_features) int8, and the scale of each row."""
        return self._levels, self.scales

    def take(self, weight: Tensor) -> None:
        """Quantize weights (out_features, in_features)."""
        self._levels, self.scales = map(torch.from_numpy, quantize(weight))

    def multiply(self, levels: np.ndarray, scales: np.ndarray) -> Tensor:
        """Multiply levels (rows, in_features) of an input, whose scales are (rows,).

        Returns:
            (rows, out_features) float32.
        """
        # torch.ao's quantized layers are deprecated, and have one scale for all rows of a batch.
        sums = torch._int_mm(torch.from_numpy(levels), self._levels.t())
        return sums.float().mul_(self.scales).mul_(torch.from_numpy(scales)[:, None])


class PackedLevels:
    """Levels in the order in which `int8_product.multiply_packed` reads them.

    torch brings weights into such an order in every call, which takes longer than multiplying a
    few rows by them, or, without AVX-512, multiplies number by number.
    """

    def __init__(self, out_features: int, in_features: int, kind: Instructions) -> None:
        self._columns, self._kind = out_features, kind
        panels, quads = math.ceil(out_features / TILE), math.ceil(in_features / 4)
        # A tensor, because torch aligns memory to 64 bytes, in copies too.
        self._memory = torch.empty(panels, quads, TILE, dtype=torch.int32)
        self._scales = np.zeros(panels * TILE, np.float32)

    @property
    def stored(self) -> tuple[Tensor, Tensor]:
        """Levels as `quantize_packed` writes them, and the scale of each row."""
        return self._memory, self.scales

    @property
    def scales(self) -> Tensor:
        """Scale of each row, (out_features,) float32."""
        return torch.from_numpy(self._scales[: self._columns])

    def take(self, weight: Tensor) -> None:
        """Quantize weights (out_features, in_features)."""
        block, memory = math.gcd(weight.shape[1], BLOCK), self._memory.numpy()
        for part in cached_parts(weight):
            exact = weight[part].float().contiguous().numpy()
            packed = memory[part.start // TILE : math.ceil(part.stop / TILE)]
            quantize_packed(exact, block, packed, self._scales[part])

    def multiply(self, levels: np.ndarray, scales: np.ndarray) -> Tensor:
        """Multiply levels of an input; see `PlainLevels.multiply`."""
        rows, columns, packed = len(levels), self._columns, self._memory.numpy()
        out = torch.empty(-rows // 4 * -4, len(self._scales))
        parallel, useful = parallel_function(), rows * packed.size * 4 // _PER_THREAD
        threads = max(1, min(torch.get_num_threads(), useful, len(packed))) if parallel else 1
        multiply_packed(
            levels, scales, packed, self._scales, out.numpy(), product(self._kind),
            ITEM_SIZES[self._kind], threads, parallel,
        )  # fmt: skip
        return out if out.shape == (rows, columns) else out[:rows, :columns].contiguous()


@cache
def parallel_function() -> int:
    """Address of `GOMP_parallel` in the OpenMP that torch uses; 0 if it has none.

    Threads of another pool would contend with torch's, which wait in loops for a while.
    """
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        function = ctypes.CDLL(str(library)).GOMP_parallel
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


# -- speed of products in the number formats of sampling ------------------------------------------

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
