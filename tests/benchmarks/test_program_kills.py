"""Evaluations of agent programs that are killed at random moments go on without a loss."""

import random

import pytest

from benchmarks.program_kills import Run, lines_of, play_killed

pytestmark = pytest.mark.full


@pytest.mark.parametrize("number", [0, 1])
def test_a_killed_evaluation_goes_on_and_equals_one_that_was_not_killed(number, tmp_path):
    row = play_killed(lines_of(tmp_path)[number], tmp_path, 2, random.Random(number))
    assert row["kills"] == 2
    assert (row["differing"], row["orphans"]) == ([], [])


def test_killed_training_goes_on_and_equals_one_that_was_not_killed(tmp_path):
    row = play_killed(lines_of(tmp_path)[3], tmp_path, 1, random.Random(0))
    assert row["kills"] == 1
    assert (row["differing"], row["orphans"]) == ([], [])


def test_programs_end_with_a_command_that_is_killed(tmp_path):
    line = lines_of(tmp_path)[1]
    line = line._replace(words=(*line.words[:2], "sleep 100", *line.words[3:]))
    run = Run(line, tmp_path / "out")
    while not any(process.name() == "sleep" for process in run.processes()):
        assert not run.is_over(0.1)
    run.kill()
    assert run.orphans() == []
