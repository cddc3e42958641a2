"""Work of a vLLM worker after new weights, on stand-ins of its model."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="it runs in vLLM's workers")

from flowzoo.agents.vllm.receive import repack_tied_head

pytestmark = pytest.mark.vllm


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
