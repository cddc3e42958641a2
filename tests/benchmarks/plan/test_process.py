"""Memory of a process on a CPU: the parts of a plan, and a run against their sum."""

import platform

import pytest

pytest.importorskip("torch", reason="the trainer needs flowzoo[train]")

from benchmarks.plan.process import ProcessMemory, sampling_bytes
from benchmarks.plan.sizes import RunSizes
from flowzoo.baselines.settings.config import TrainConfig
from tests.processes import run_python

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="the C library is not glibc"
)


@pytest.fixture(scope="module")
def sizes() -> RunSizes:
    """A run of the pocket model on this CPU."""
    return RunSizes(TrainConfig(max_tokens=16, lr=1e-4, problems=2, samples=3), cpu=True)


BLOCKS = """
from benchmarks.plan.allocations import Heap
heap = Heap()
# The ends that alignment cuts off go to a cache of each small size, and keep blocks apart there.
# Once it is full, they are joined with the blocks that are freed beside them.
for size in (24, 40, 56):
    for address in [heap.allocate(size) for _ in range(16)]:
        heap.free(address)
blocks = [heap.allocate(100 * 2**20) for _ in range(3)]
print(heap.growth // 2**20)
heap.free(blocks[0])
heap.free(blocks[1])
heap.allocate(190 * 2**20)
print(heap.growth // 2**20)
heap.allocate(20 * 2**20)
print(heap.growth // 2**20)
"""


def test_a_heap_reuses_what_fits_and_never_shrinks():
    before, reused, grown = map(int, run_python(BLOCKS).split())
    assert 299 <= before <= 301
    assert reused == before, "190 MiB are in the gap of 200"
    assert 319 <= grown <= 322, "20 MiB are not in the 10 that are left of it"


TENSORS = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from benchmarks.plan.allocations import AllocatedTensors, Heap
MIB = 2**20
with FakeTensorMode():
    weight = torch.empty(100 * MIB, dtype=torch.uint8)
    torch.ones(3).requires_grad_().sqrt().sum().backward()  # imports take memory, too
    heap = Heap()
    with AllocatedTensors(heap, [weight]):
        weight.view(-1)[:10].add_(1)
        print(heap.growth // MIB)
        first = torch.empty(12 * MIB, dtype=torch.float32)
        first[:10].mul_(2)
        root = first.requires_grad_().sqrt()
        loss = root.sum()
        del root
        print(heap.growth // MIB)
        loss.backward()
        print(heap.growth // MIB)
        del loss, first
        torch.empty(90 * MIB, dtype=torch.uint8)
        print(heap.growth // MIB)
        print(float(torch.ones(3).sum()), bool((torch.ones(3) > 2).any()), torch.ones(3).tolist())
        print(tuple(torch.ones(4, 5, 6)[torch.ones(4, 5) > 2].shape))
"""


def test_tensors_are_allocated_for_as_long_as_they_are_used():
    """Of 48 MiB each: a tensor, its root, and while that is kept two for the gradient."""
    outside, forward, backward, later, values, shape = run_python(TENSORS).splitlines()
    assert int(outside) == 0
    assert 94 <= int(forward) <= 98, "autograd keeps the root"
    assert 190 <= int(backward) <= 196
    assert later == backward
    assert (values, shape) == ("1.0 False [1.0, 1.0, 1.0]", "(20, 6)")


def test_sampling_takes_a_cache_and_logits(sizes):
    """Numbers of a token are keys and values of each head of each layer, in float32."""
    text = sizes.configs["pocket"]
    cache = 4 * 2 * text.num_hidden_layers * text.num_key_value_heads * text.head_dim
    longest = max(len(call.prompt_ids) for call in sizes.rows) + 16
    assert sampling_bytes(sizes) == 6 * (longest * cache + 22 * text.vocab_size)


def test_rows_of_a_step_have_its_prompts_and_full_replies(sizes):
    assert len(sizes.rows) == 6 * sum(sizes.agents.values())
    assert {len(call.output_ids) for call in sizes.rows} == {16}
    assert {call.policy for call in sizes.rows} == {"shared"}
    assert all(call.prompt_ids for call in sizes.rows)
    assert not RunSizes(TrainConfig(max_tokens=16, lr=1e-4)).rows


LEARNING = """
from benchmarks.plan.process import learning_bytes
from benchmarks.plan.sizes import RunSizes
from flowzoo.baselines.settings.config import TrainConfig
sizes = RunSizes(TrainConfig(max_tokens=16, lr=1e-4, problems=2, samples=3), cpu=True)
print(sizes.shape("shared").parameters, learning_bytes(sizes))
"""


def test_learning_takes_gradients_state_and_activations():
    parameters, size = map(int, run_python(LEARNING).split())
    assert 12 * parameters < size < 12 * parameters + 200 * 2**20


def test_work_comes_one_kind_after_another():
    memory = ProcessMemory({"libraries": 100, "weights": 10}, {"sampling": 5, "learning": 20})
    assert memory.peak == 130
