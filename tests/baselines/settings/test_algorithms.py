"""The table of algorithms, and the command that prints it."""

import json
from typing import get_args

import pytest

from flowzoo import cli
from flowzoo.baselines.advantages.spec import PRESETS
from flowzoo.baselines.learner.config import Aggregation, LossConfig
from flowzoo.baselines.settings.algorithms import ALGORITHMS, algorithm_named
from flowzoo.errors import UsageError


def test_every_preset_has_its_algorithm_and_every_one_says_how_it_differs():
    assert set(PRESETS) < set(ALGORITHMS)
    for name, algorithm in ALGORITHMS.items():
        assert algorithm.advantage is PRESETS.get(name, PRESETS["grpo"])
        assert algorithm.source
        assert algorithm.differs.endswith(".")
        assert algorithm.aggregation in get_args(Aggregation)
        LossConfig(
            ratio=algorithm.ratio, clip_low=algorithm.clip_low, clip_high=algorithm.clip_high,
            dual_clip=algorithm.dual_clip, clipping=algorithm.clipping,
        )  # fmt: skip


def test_sampling_fits_the_target():
    """Only tree sampling fills what `candidate` and `node` read."""
    needed = {"candidate": "tree", "node": "joint"}
    for algorithm in ALGORITHMS.values():
        assert algorithm.sampling == needed.get(algorithm.advantage.target, "episodes")


def test_unknown_names_get_near_matches():
    assert algorithm_named("rloo").advantage.mean == "loo"
    with pytest.raises(UsageError, match="dr_mas"):
        algorithm_named("drmas")


def test_the_table_fits_100_columns_and_names_every_choice(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main(["algorithms"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ALGORITHMS)
    assert max(map(len, out.splitlines())) <= 100
    words = ("candidate", "return_to_go, gamma 1", "turn, agent, state", "running 0.99, by call")
    assert all(word in out for word in words)
    assert cli.main(["algorithms", "dr_grpo", "paper"]) == 0
    out = capsys.readouterr().out
    assert "token-sum / (rows * max_tokens)" in out
    assert "2605.24202" in out
    assert "at_grpo" not in out


def test_json_holds_every_field(capsys):
    assert cli.main(["algorithms", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["name"] for row in rows] == list(ALGORITHMS)
    assert rows[0]["advantage"]["mean_group"] == ["problem"]
    assert cli.main(["algorithms", "grop"]) == 2
