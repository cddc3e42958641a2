"""A script that runs on without a yield is told of."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from flowzoo.envs import Ask, Episode, Outcome, Workflow
from flowzoo.envs.api.registry import make_workflow
from flowzoo.envs.episode.watchdog import watch
from tests.processes import run_python

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


def test_a_script_without_a_yield_is_told_of_with_its_line():
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


def test_many_short_episodes_are_not():
    workflow, caught = make_workflow("single_v0"), list[str]()
    problem, start = workflow.task.problem(0), time.thread_time()
    with watch(caught.append, 0.4):
        while time.thread_time() - start < 1.0:
            Episode(workflow, problem).reply("generator_0", "no")
    assert caught == []


COLLECTED = """
import gc, inspect, sys, threading
from flowzoo.envs.episode.watchdog import newest_frame

lines, start = inspect.getsourcelines(newest_frame)
(line,) = [start + n for n, text in enumerate(lines) if "sys._current_frames" in text]
places = []

def note(phase, info):
    frame = sys._getframe(1)
    places.append((frame.f_code.co_name, frame.f_lineno))

def listed():
    first = sys._current_frames()
    return first, sys._current_frames(), sys._current_frames()

over = threading.Event()
threads = [threading.Thread(target=over.wait) for _ in range(20)]
for thread in threads:
    thread.start()
gc.set_threshold(1)
gc.callbacks.append(note)
for _ in range(20):
    frame = newest_frame(threading.get_ident())
    listed()
gc.callbacks.remove(note)
over.set()
assert frame is not None
assert frame.f_back is sys._getframe()
assert ("newest_frame", line) not in places
assert "listed" in {name for name, _ in places}
"""


def test_no_garbage_is_collected_while_python_lists_its_threads():
    # Callbacks of a collection run under Python's lock of threads: one that starts would wait. So a
    # process of its own, in which no other test has left any.
    run_python(COLLECTED)
