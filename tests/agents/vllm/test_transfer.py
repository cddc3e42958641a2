"""vLLM's senders of a GPU with its receivers, as far as a CPU goes: what is told and what arrives.

Both ends are vLLM's classes as they are used on GPUs. In place of CUDA's streams stands nothing, of
NCCL vLLM's own group over a TCP store, of a handle of GPU memory the CPU's memory.
"""

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="its senders and receivers are tested")

import torch
from torch.overrides import TorchFunctionMode
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.utils import StatelessProcessGroup
from vllm.distributed.weight_transfer import (
    VLLMWeightSyncClient,
    WeightTransferEngineFactory,
    ipc_engine,
    nccl_engine,
    packed_tensor,
)
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

import flowzoo.agents.vllm.worker  # noqa: F401 - makes the back-ends known
from flowzoo.agents.vllm import send
from flowzoo.agents.vllm.receive import repack_tied_head
from flowzoo.agents.vllm.send import EngineCalls, LoneIPCSender, TensorSource, open_sender
from flowzoo.agents.vllm.settings import EngineSettings, engine_fields
from flowzoo.agents.vllm.transfer import handles_of, plain_handles

pytestmark = pytest.mark.vllm

GPU = "GPU-of-the-test"
SHARED = (
    torch.Tensor, torch.Size([4096]), (1,), 0, torch.storage.TypedStorage, torch.uint8, 0,
    b"\x00handle\xff", 2**33, 512, False, b"/torch_1_2", 3, b"event", True,
)  # fmt: skip
"""Description by torch 2.13 of packed weights in a GPU's memory (`reduce_tensor`)."""


def weights() -> dict[str, torch.Tensor]:
    """A tied head, a matrix that is not contiguous, and numbers that bfloat16 has."""
    torch.manual_seed(0)
    tied = torch.randint(-64, 64, (40, 16)).float()
    many = {f"model.layers.{i}.w": torch.randint(-64, 64, (8, 16 + i)).float() for i in range(6)}
    return {"model.embed_tokens.weight": tied, **many, "turned": tied[:8].T, "lm_head.weight": tied}


class Taken(torch.nn.Module):
    """A model that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, torch.Tensor] = {}

    def load_weights(self, pairs: Any) -> None:
        self.found |= {name: value.clone() for name, value in pairs}


class Worker:
    """An `AsyncLLM` as far as its calls around new weights go: what is sent crosses as bytes."""

    def __init__(self, way: Any) -> None:
        self.model, self.said = Taken(), [""]
        settings = EngineSettings(placement="split", weight_transfer=way)
        config = engine_fields("m", settings, cpu=False)["weight_transfer_config"]
        parallel = SimpleNamespace(data_parallel_index=0, world_size=1, rank=0)
        whole = SimpleNamespace(parallel_config=parallel, model_config=None)
        device: Any = SimpleNamespace(type="cuda", index=0) if way == "ipc" else torch.device("cpu")
        self.engine: Any = WeightTransferEngineFactory.create_engine(
            WeightTransferConfig(**config), whole, device, self.model
        )

    def crossed(self, value: Any) -> Any:
        return MsgpackDecoder().decode(MsgpackEncoder().encode([value]))[0]

    async def init_weight_transfer_engine(self, request: Any) -> None:
        info = self.engine.parse_init_info(self.crossed(request.init_info))
        self.engine.init_transfer_engine(info)
        self.said.append("init")

    async def start_weight_update(self) -> None:
        self.engine.start_weight_update()
        self.said.append("start")

    async def update_weights(self, request: Any) -> None:
        self.engine.update_weights(self.crossed(request.update_info))
        self.said.append("update")

    async def finish_weight_update(self, weight_version: str | None) -> None:
        assert weight_version is None
        self.engine.finish_weight_update()
        self.said.append("finish")


def calls_of(worker: Worker) -> EngineCalls:
    def call(work: Any) -> None:
        with pytest.raises(StopIteration):
            work().send(None)

    return EngineCalls(worker, call)


class OnCPU(TorchFunctionMode):
    """Tensors that were to be made on a GPU are made here."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


class StoreGroup:
    """The part of a NCCL communicator that is used, over vLLM's group without one."""

    def __init__(self, rank: int, port: int) -> None:
        self.group, self.gone = StatelessProcessGroup.create("127.0.0.1", port, rank, 2), False
        self.rank = rank

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any = None) -> None:
        given = self.group.broadcast(tensor, src)
        if self.rank != src:
            assert given.shape == tensor.shape
            tensor.copy_(given)

    def destroy(self) -> None:
        self.gone = True


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CUDA's streams, of which a CPU has none, do nothing."""
    still = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(packed_tensor, "_get_streams", lambda device, count: (still,) * count)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: still)
    monkeypatch.setattr(torch.cuda, "ipc_collect", lambda: None)
    properties = SimpleNamespace(uuid=GPU)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    monkeypatch.setattr(send, "_BUFFER", 600)  # so that there are several packs
    with OnCPU():
        yield


def source(tensors: dict[str, torch.Tensor]) -> TensorSource:
    results = TensorSource(torch.bfloat16)
    results.tensors = tensors
    return results


def check_arrived(worker: Worker, tensors: dict[str, torch.Tensor]) -> None:
    assert worker.model.found.keys() == tensors.keys()
    for name, value in tensors.items():
        assert worker.model.found[name].dtype == torch.bfloat16
        assert torch.equal(worker.model.found[name].float(), value), name


def test_what_is_told_is_what_is_sent():
    selected = source(weights())
    messages = selected.metadata()
    checked = nccl_engine.NCCLTrainerWeightTransferEngine._checked_iter(selected, messages)
    sizes = [value.nbytes for _, value in checked]
    assert len(sizes) == len(weights())
    assert selected.buffer_bytes == sum(sizes)
    assert isinstance(calls_of(Worker("nccl")), VLLMWeightSyncClient)


def test_a_buffer_holds_the_largest_tensor(monkeypatch):
    monkeypatch.setattr(send, "_BUFFER", 600)
    assert source(weights()).buffer_bytes == 40 * 16 * 2
    monkeypatch.setattr(send, "_BUFFER", 1500)
    assert source(weights()).buffer_bytes == 1500


@pytest.mark.usefixtures("no_cuda")
def test_nccl_carries_weights_as_vllm_expects_them(monkeypatch):
    joined: list[StoreGroup] = []

    def join(rank: int, port: int) -> StoreGroup:
        joined.append(StoreGroup(rank, port))
        return joined[-1]

    def join_group(info: Any, parallel: Any) -> StoreGroup:
        assert (info.rank_offset, info.world_size, info.master_address) == (1, 2, "127.0.0.1")
        return join(1, info.master_port)

    monkeypatch.setattr(nccl_engine, "worker_init_process_group", join_group)
    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", lambda i: join(0, i.master_port))
    worker, tensors = Worker("nccl"), weights()
    selected = source(tensors)
    sender = open_sender("nccl", calls_of(worker), selected)
    for _ in range(2):
        worker.model.found, worker.said = {}, []
        sender.send_weights()
        assert worker.said == ["start", "update", "finish"]
        check_arrived(worker, tensors)
        tensors["turned"].add_(1)  # and the head and the embedding with it
    sender.shutdown()
    assert [item.gone for item in sorted(joined, key=lambda item: item.rank)] == [True, False]


@pytest.mark.usefixtures("no_cuda")
def test_ipc_carries_weights_as_vllm_expects_them(monkeypatch):
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "0")
    shared: list[torch.Tensor] = []

    def reduce(tensor: torch.Tensor) -> Any:
        shared.append(tensor)
        return None, SHARED

    def rebuild(*given: Any) -> torch.Tensor:
        assert given == SHARED
        return shared[-1]

    monkeypatch.setattr(packed_tensor, "reduce_tensor", reduce)
    monkeypatch.setattr("torch.multiprocessing.reductions.rebuild_cuda_tensor", rebuild)
    worker, tensors = Worker("ipc"), weights()
    sender = open_sender("ipc", calls_of(worker), source(tensors))
    assert worker.said == ["", "init"]
    for _ in range(2):
        worker.model.found, worker.said = {}, []
        sender.send_weights()
        assert worker.said[0] == "start"
        assert worker.said[-1] == "finish"
        assert worker.said.count("update") > 2
        check_arrived(worker, tensors)
        tensors["turned"].add_(1)


def test_handles_are_words_numbers_and_bytes(monkeypatch):
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "0")
    plain = plain_handles({GPU: SHARED})
    crossed = MsgpackDecoder().decode(MsgpackEncoder().encode(plain))
    assert handles_of(crossed) == {GPU: SHARED}
    with pytest.raises(TypeError, match="VLLM_ALLOW_INSECURE_SERIALIZATION"):
        MsgpackEncoder().encode({GPU: SHARED})  # without the words
    with pytest.raises(ValueError, match="which has no word"):
        plain_handles({GPU: (print,)})
    with pytest.raises(ValueError, match=r"unknown word 'os\.system'"):
        handles_of({GPU: ["os.system"]})


def test_pickled_handles_are_refused_even_where_vllm_takes_them(monkeypatch):
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    info = {"names": [], "dtype_names": [], "shapes": [], "ipc_handles_pickled": "gASVCg=="}
    with pytest.raises(ValueError, match="are not unpickled here"):
        Worker("ipc").engine.parse_update_info(info)


def test_a_rank_waits_for_no_other_rank():
    """The methods in which vLLM's sender asks all ranks are those that ours has in their place."""
    base = ipc_engine.IPCTrainerWeightTransferEngine
    for name in ("_all_gather_and_merge_handles", "_post_send_sync"):
        assert "torch.distributed" not in getattr(LoneIPCSender, name).__code__.co_names
        assert "barrier" in getattr(base, name).__code__.co_names
        assert getattr(LoneIPCSender, name) is not getattr(base, name)


def test_a_transfer_that_is_stuck_holds_nobody():
    """Whoever sent may go on: the thread is nobody's to wait for."""
    never = threading.Event()

    def call(work: Any) -> None:
        never.wait(600)

    sender = send.WeightSender("file", EngineCalls(None, call), torch.float32)
    future = sender.send({"w": torch.ones(3)})
    with pytest.raises(TimeoutError):
        future.result(0.2)
    (thread,) = [item for item in threading.enumerate() if item.name == "flowzoo-weights"]
    assert thread.daemon
    sender.close()
    never.set()
    future.result(60)


def tensor(address: int, device: str) -> Any:
    """As much of a tensor as tells where its numbers lie."""
    return SimpleNamespace(device=SimpleNamespace(type=device), data_ptr=lambda: address)


def repacked(tied: str, device: str = "cpu", packs: bool = True) -> list[Any]:
    """The heads packed anew: of a model whose head is its embedding, shares or has weights."""
    results: list[Any] = []
    method = SimpleNamespace(process_weights_after_loading=results.append) if packs else None
    embedding = SimpleNamespace(weight=tensor(1, device), quant_method=method)
    local = tensor(2 if tied == "no" else 1, device)
    head = embedding if tied == "same" else SimpleNamespace(weight=local, quant_method=method)
    model = SimpleNamespace(lm_head=head, model=SimpleNamespace(embed_tokens=embedding))
    repack_tied_head(model)
    assert all(item is head for item in results)
    return results


@pytest.mark.parametrize(("tied", "times"), [("same", 1), ("shares", 1), ("no", 0)])
def test_a_head_is_packed_anew_if_it_is_the_embedding(tied, times):
    assert len(repacked(tied)) == times


def test_other_heads_are_left_alone():
    assert repacked("same", device="cuda") == []
    assert repacked("same", packs=False) == []
    repack_tied_head(SimpleNamespace())
