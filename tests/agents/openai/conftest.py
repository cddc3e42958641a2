"""An endpoint on the loopback, and pauses that take no time."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from endpoint import Endpoint, serving

from flowzoo.agents.openai import policy


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving() as server:
        yield server


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses that a policy makes, which let others run and take no time."""
    lengths: list[float] = []

    async def pause(seconds: float) -> None:
        lengths.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(policy, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": pause}))
    return lengths
