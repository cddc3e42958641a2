"""Fixtures shared by the tests of the workflows."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from flowzoo.envs import EpisodeRecord, Problem, make_workflow
from tests.envs.playing import play_lists

PROBLEM = Problem("math", "test", 0, 0, "Compute 2+3*4.", "14")

Play = Callable[..., EpisodeRecord]


@pytest.fixture
def play() -> Play:
    """Plays a workflow on `Compute 2+3*4.` with scripted replies: agent -> replies in order."""

    def run(name: Any, replies: Mapping[str, list[str]], **options: Any) -> EpisodeRecord:
        return play_lists(make_workflow(name, **options), PROBLEM, replies)

    return run
