"""Restarts of vLLM engines, counted; the engines are made up."""

from types import SimpleNamespace
from typing import Any

import pytest

from flowzoo.agents.vllm.backend import EngineDeadError
from flowzoo.agents.vllm.engine import WeightsGate
from flowzoo.baselines.engines.vllm import VLLMEngines


class Engine:
    """An engine that is dead until it is restarted."""

    def __init__(self) -> None:
        self.gate, self.adapters, self.starts = WeightsGate(), dict[str, Any](), 0
        self.backend = SimpleNamespace(alive=False, reset_cache=lambda: None)

    def restart(self) -> None:
        self.starts += 1
        self.backend.alive = True


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def engines(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> VLLMEngines:
    made = VLLMEngines.__new__(VLLMEngines)
    config = SimpleNamespace(shard="none", engine_restarts=1, engine_sleep=False)
    vars(made).update(
        _engines={"p": engine}, by_policy={"p": engine}, _learners={}, _unproved=set(),
        _asleep=False, _restarted=False, _config=config, _restarts=1,
    )  # fmt: skip

    def sync(self: VLLMEngines, probe: bool = True) -> dict[str, float]:
        if not engine.backend.alive:
            raise EngineDeadError("it died")
        return {}

    monkeypatch.setattr(VLLMEngines, "_sync", sync)
    return made


def test_a_death_that_a_sync_has_mended_is_not_counted_again(engines, engine):
    engines.sync(probe=False)
    engines.recover(EngineDeadError("it died"))  # as a batch reports that it cut off
    assert engine.starts == 1


def test_the_next_death_is_counted(engines, engine):
    engines.sync(probe=False)
    engines.recover(EngineDeadError("it died"))
    with pytest.raises(EngineDeadError):
        engines.recover(EngineDeadError("it died"))
    engines.before_learning()
    engine.backend.alive = False
    engines.recover(EngineDeadError("it died"))
    assert engine.starts == 2
