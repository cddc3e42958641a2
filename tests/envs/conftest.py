"""Fixtures shared by the tests of the workflows."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from flowzoo.envs import Episode, EpisodeRecord, Problem, make_workflow
from flowzoo.envs.episode.recording import record
from flowzoo.envs.testing import advance

PROBLEM = Problem("math", "test", 0, 0, "Compute 2+3*4.", "14")

Play = Callable[..., EpisodeRecord]


@pytest.fixture
def play() -> Play:
    """Plays a workflow on `Compute 2+3*4.` with scripted replies: agent -> replies in order."""

    def run(name: Any, replies: Mapping[str, list[str]], **options: Any) -> EpisodeRecord:
        workflow = make_workflow(name, **options)
        episode = Episode(workflow, PROBLEM, "e")
        left = {agent: list(texts) for agent, texts in replies.items()}
        advance(episode)
        while not episode.done:
            for turn in episode.waiting:
                assert left.get(turn.agent), f"{turn.agent} was asked once more than expected"
                episode.reply(turn.agent, left[turn.agent].pop(0))
            advance(episode)
        unused = {agent: texts for agent, texts in left.items() if texts}
        assert not unused, f"never asked for: {unused}"
        return record(episode)

    return run
