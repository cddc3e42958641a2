"""Warm starts on games: no reply is right, so that every readable one is taught."""

from collections import Counter
from pathlib import Path

import pytest

from flowzoo.baselines.settings.sft import SftConfig
from flowzoo.baselines.sft.choose import SftCounts, choose, reason_against
from flowzoo.baselines.sft.sources import ScriptedPlay, Transcript, play_scripted
from flowzoo.envs import make_workflow

GAMES = Path(__file__).resolve().parents[3] / "examples" / "games.py"


@pytest.fixture(scope="module")
def episodes() -> list[Transcript]:
    workflow = make_workflow(f"{GAMES}:Commons")
    return play_scripted("scripted", workflow, 0.5, ScriptedPlay("train", 20, 1, 0))


def test_a_game_needs_no_threshold(episodes):
    assert all(episode.pays and (episode.score or 0) < 1 for episode in episodes[:5])
    counts = SftCounts()
    kept = choose(episodes, SftConfig(workflow="x"), (), counts)
    assert (len(kept), counts.left_out["score below the threshold"]) == (20, 0)
    reasons = Counter(reason_against(reply, "right") for one in kept for reply in one.replies)
    assert reasons == {"": 60}


def test_a_threshold_that_is_given_counts(episodes):
    kept = choose(episodes, SftConfig(workflow="x", threshold=0.5), (), SftCounts())
    assert 0 < len(kept) < 20
    assert min(episode.score or 0 for episode in kept) >= 0.5


def test_scores_that_are_truth_still_have_to_be_1():
    voting = make_workflow("voting_v0", "math", level=1)
    played = play_scripted("scripted", voting, 0.6, ScriptedPlay("train", 20, 1, 0))
    kept = choose(played, SftConfig(workflow="x"), (), SftCounts())
    assert 0 < len(kept) < 20
    assert {episode.score for episode in kept} == {1.0}
    assert not any(episode.pays for episode in played)
