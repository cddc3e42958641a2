"""Senders of a weight transfer from the learner to an engine in separate processes."""

import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch
from vllm.distributed.weight_transfer.base import (
    ParamMeta,
    TrainerWeightTransferEngine,
    WeightSource,
    WeightTransferInitRequest,
    WeightTransferUpdateRequest,
)
from vllm.distributed.weight_transfer.ipc_engine import (
    IPCTrainerInitInfo,
    IPCTrainerWeightTransferEngine,
)
from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLTrainerInitInfo,
    NCCLTrainerWeightTransferEngine,
)
from vllm.utils.network_utils import get_open_port

from flowzoo.agents.vllm.backend import Tensors
from flowzoo.agents.vllm.settings import WeightTransfer
from flowzoo.agents.vllm.transfer import plain_handles, send_file

_HOST = "127.0.0.1"
"""A split engine is on this machine."""
_BUFFER = 2**28
"""Bytes that are sent at a time, unless one tensor or the whole is larger or smaller."""


class TensorSource(WeightSource):
    """Weights as vLLM's senders read them: in the engine's number format, on the GPU that sends.

    `tensors` are set before every transfer and taken away after it.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.device: torch.device | None = None
        self.tensors: Tensors = {}

    def metadata(self) -> list[ParamMeta]:
        """Name, number format and shape of each, in the order of iteration."""
        return [
            ParamMeta(name, self.dtype, tuple(value.shape)) for name, value in self.tensors.items()
        ]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, value in self.tensors.items():
            yield name, value.detach().to(self.device, self.dtype).contiguous()

    @property
    def buffer_bytes(self) -> int:
        """Bytes to send at a time: no less than the largest tensor."""
        sizes = [value.numel() * self.dtype.itemsize for value in self.tensors.values()]
        return max(*sizes, min(_BUFFER, sum(sizes)))


class EngineCalls(NamedTuple):
    """vLLM's calls around new weights, of an `AsyncLLM`, as its senders want them: blocking."""

    engine: Any
    call: Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
    """Awaits something of the engine, and raises when it dies or takes too long."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Connect."""
        request = WeightTransferInitRequest(init_info=init_info)
        self.call(lambda: self.engine.init_weight_transfer_engine(request))

    def start_weight_update(self) -> None:
        """See `UpdateCalls`."""
        self.call(lambda: self.engine.start_weight_update())

    def update_weights(self, update_info: Any) -> None:
        """See `UpdateCalls`; handles of memory go in words."""
        if "ipc_handles" in update_info:
            handles = plain_handles(update_info["ipc_handles"])
            update_info = {**update_info, "ipc_handles": handles}
        request = WeightTransferUpdateRequest(update_info=update_info)
        self.call(lambda: self.engine.update_weights(request))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """See `UpdateCalls`."""
        self.call(lambda: self.engine.finish_weight_update(weight_version))


class LoneIPCSender(IPCTrainerWeightTransferEngine):
    """vLLM's sender for one GPU, whose engine belongs to this rank alone."""

    # vLLM's gathers the handles of all ranks, for one engine on all their GPUs. Each rank here has
    # its own engine, and a rank that restarted its engine would wait for ranks that do not come.

    def _all_gather_and_merge_handles(self, handles: list[Any]) -> list[Any]:
        return handles

    @staticmethod
    def _post_send_sync() -> None:
        torch.cuda.ipc_collect()


def open_sender(
    way: WeightTransfer, calls: EngineCalls, source: TensorSource
) -> TrainerWeightTransferEngine[Any]:
    """The sender that vLLM has for a GPU, connected with the engine behind `calls`."""
    size = source.buffer_bytes
    if way == "ipc":
        shared = IPCTrainerInitInfo(rank=0, packed=True, packed_buffer_size_bytes=size)
        return LoneIPCSender.trainer_init(shared, client=calls, source=source)
    between = NCCLTrainerInitInfo(
        rank=0, master_address=_HOST, master_port=get_open_port(), world_size=2, packed=True,
        packed_buffer_size_bytes=size,
    )  # fmt: skip
    return NCCLTrainerWeightTransferEngine.trainer_init(between, client=calls, source=source)


class WeightSender:
    """Sends weights to one engine, as long as that lives; a new engine needs a new one."""

    def __init__(self, way: WeightTransfer, calls: EngineCalls, dtype: torch.dtype) -> None:
        # The connection is made with the first weights.
        self._way, self._calls = way, calls
        self._source = TensorSource(dtype)
        self._sender: TrainerWeightTransferEngine[Any] | None = None

    def send(self, tensors: Tensors) -> Future[None]:
        """Begin to send on a daemon thread; tensors must not change until the future is done."""
        # NCCL and handles of memory wait for the other side without an end, and an engine that died
        # never comes (TRL #6797, #7103): the caller may stop waiting.
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()
        gpu = None if self._way == "file" else _gpu_of(tensors)

        def work() -> None:
            try:
                with torch.cuda.device(gpu) if gpu is not None else contextlib.nullcontext():
                    self._send(tensors, gpu)
            except BaseException as error:  # passed on to the caller, who waits for the future
                done.set_exception(error)
            else:
                done.set_result(None)

        threading.Thread(target=work, name="flowzoo-weights", daemon=True).start()
        return done

    def _send(self, tensors: Tensors, gpu: torch.device | None) -> None:
        if gpu is None:
            send_file(self._calls, tensors, self._source.dtype)
            return
        torch.cuda.synchronize(gpu)  # vLLM's senders read on other streams
        self._source.tensors, self._source.device = tensors, gpu
        try:
            if self._sender is None:
                self._sender = open_sender(self._way, self._calls, self._source)
            self._sender.send_weights()
        finally:
            self._source.tensors = {}

    def close(self) -> None:
        """Give up what is connected; a transfer under way fails. Calling it twice is harmless."""
        sender, self._sender = self._sender, None
        if sender is not None:
            with contextlib.suppress(Exception):
                sender.shutdown()


def _gpu_of(tensors: Tensors) -> torch.device:
    device = next(iter(tensors.values())).device
    return device if device.type == "cuda" else torch.device("cuda", torch.cuda.current_device())
