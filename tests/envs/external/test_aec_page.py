"""examples/tictactoe.py, which docs/aec.md names."""

import re
from pathlib import Path

import pytest

from flowzoo.envs import Episode, EpisodeRecord
from flowzoo.envs.episode.recording import record
from flowzoo.envs.external.workflow import make_aec_workflow
from flowzoo.envs.testing.playthrough import play_with

ROOT = Path(__file__).resolve().parents[3]


def played(file: Path) -> EpisodeRecord:
    """An episode of the environment in `file` in which free cells are taken in their order."""
    workflow = make_aec_workflow(f"{file}:make", illegal="end")
    episode = Episode(workflow, workflow.task.problem(0), "0")
    return record(
        play_with(episode, lambda turn: min(re.findall(r"\d", turn.messages[0]["content"])))
    )


def test_the_example_of_the_page_plays_to_its_end():
    pytest.importorskip("pygame", reason="PettingZoo's classic games need pygame: flowzoo[dev]")
    example = played(ROOT / "examples" / "tictactoe.py")
    assert 3 <= len(example.calls) <= 5
    assert abs(example.returns["player_1"]) == 1
    assert example.facts["illegal"] == 0
