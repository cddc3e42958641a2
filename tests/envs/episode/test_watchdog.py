"""A script that runs on without a yield is told of."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from flowzoo.envs import Ask, Episode, Outcome, Workflow
from flowzoo.envs.api.registry import make_workflow
from flowzoo.envs.episode.watchdog import watch

pytestmark = pytest.mark.skipif(
    not hasattr(time, "pthread_getcpuclockid"), reason="no clock of a thread's CPU time"
)
TOLD: list[str] = []


@dataclass(frozen=True)
class Busy(Workflow):
    """Computes after its ask until it is told of."""

    name: ClassVar[str] = "busy_v0"
    roles: ClassVar[Mapping[str, int]] = {"writer": 1}

    def play(self, problem: Any) -> Any:
        yield Ask("writer_0", problem.text)
        start = time.thread_time()  # of the whole process, which may have run for minutes
        while not TOLD and time.thread_time() - start < 60:
            pass
        return Outcome(score=1.0)


def test_a_script_without_a_yield_is_told_of_with_its_line() -> None:
    TOLD.clear()
    workflow = make_workflow(Busy)
    episode = Episode(workflow, workflow.task.problem(0))
    with watch(TOLD.append, 0.2):
        episode.reply("writer_0", "")
    assert episode.done
    (line,) = TOLD
    assert line.startswith("note: Busy.play() (")
    assert f"{__file__}, line 3" in line
    assert "without a yield" in line


def test_many_short_episodes_are_not() -> None:
    workflow, caught = make_workflow("single_v0"), list[str]()
    problem, start = workflow.task.problem(0), time.thread_time()
    with watch(caught.append, 0.4):
        while time.thread_time() - start < 1.0:
            Episode(workflow, problem).reply("generator_0", "no")
    assert caught == []
