"""Memory that the C library's heap takes for tensors, gaps included.

Allocations are repeated in this process, in their order, without touching the memory: they cost
address space alone.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from flowzoo.agents.hf.process import prepare_process

_ATEN = torch.ops.aten
_ALIGNMENT = 64
"""Of torch's tensors on a CPU."""


class Heap:
    """The heap of this process, with the settings of one that trains: it never shrinks."""

    def __init__(self) -> None:
        prepare_process(0)
        self._libc = ctypes.CDLL(None)
        self._libc.sbrk.restype = ctypes.c_void_p
        self._libc.sbrk.argtypes = [ctypes.c_ssize_t]
        self._libc.free.argtypes = [ctypes.c_void_p]
        self._libc.posix_memalign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
        self._start = self._end()

    @property
    def growth(self) -> int:
        """Bytes that the heap has grown by."""
        return self._end() - self._start

    def allocate(self, size: int) -> int:
        """Allocate a block of `size` bytes; its address."""
        pointer = ctypes.c_void_p()
        if self._libc.posix_memalign(ctypes.byref(pointer), _ALIGNMENT, size):
            raise MemoryError(f"the system refuses {size:,} bytes of address space")
        return pointer.value or 0

    def free(self, address: int) -> None:
        """Free the block at `address`."""
        self._libc.free(address)

    def _end(self) -> int:
        return self._libc.sbrk(0) or 0


class AllocatedTensors(TorchDispatchMode):
    """Allocates in a heap what operations on fake tensors return, for as long as it is used.

    Fake tensors have no values: numbers are 1, comparisons true, `any` is false, and masks select
    everything.
    """

    def __init__(self, heap: Heap, earlier: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self._heap = heap
        self._storages: WeakIdKeyDictionary = WeakIdKeyDictionary()
        """Storages of `earlier` tensors, which are not counted, and of those since."""
        for value in earlier:
            self._storages[value.untyped_storage()] = None
        self._negative: WeakIdKeyDictionary = WeakIdKeyDictionary()
        """Results of `any`."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is _ATEN._local_scalar_dense.default:
            dtype = args[0].dtype
            if dtype == torch.bool:
                return args[0] not in self._negative
            return 1.0 if dtype.is_floating_point else 1
        name, changes_shape = func._schema.name, torch.Tag.inplace_view in func.tags
        if name.endswith("_") and func._schema.returns and not changes_shape:
            return args[0]  # in place, which allocates nothing
        if func in (_ATEN.equal.default, _ATEN.allclose.default):
            return True
        if func is _ATEN.index.Tensor and getattr(args[1][0], "dtype", None) == torch.bool:
            mask = args[1][0]
            result = args[0].new_empty((mask.numel(), *args[0].shape[mask.ndim :]))
        else:
            result = func(*args, **(kwargs or {}))
        if func is _ATEN.any.default:
            self._negative[result] = None
        for value in tree_leaves(result):
            storage = value.untyped_storage() if isinstance(value, Tensor) else None
            if storage is not None and storage not in self._storages:
                self._storages[storage] = None
                address = self._heap.allocate(storage.nbytes())
                weakref.finalize(storage, self._heap.free, address)
        return result
