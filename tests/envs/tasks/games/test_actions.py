"""Reading action lists: what strict JSON takes, what the lenient reader takes, hostile texts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowzoo.envs.tasks.games.game import (
    MOST_ACTIONS,
    moves_of,
    written,
)
from flowzoo.envs.tasks.games.plan_path import PlanPathTask
from flowzoo.envs.testing import HOSTILE
from tests.tables import read_tables, readings

TASK = PlanPathTask()


@pytest.mark.parametrize(("mode", "text", "answer"), readings(read_tables(__file__)))
def test_strict_takes_the_last_json_list_and_lenient_letters_and_words(mode, text, answer):
    assert (TASK.answer if mode == "strict" else TASK.answer_lenient)(text) == answer


def test_bounds_are_kept():
    assert TASK.answer(written(["U"] * MOST_ACTIONS)) is not None
    assert TASK.answer(written(["U"] * (MOST_ACTIONS + 1))) is None
    assert TASK.answer_lenient(f"[{'U' * (MOST_ACTIONS + 1)}]") is None
    assert TASK.answer("[" * 100_000 + '"U"' + "]" * 100_000) is None


@pytest.mark.parametrize("text", [*HOSTILE.values(), "[" + "9" * 10_000 + "]", "```" * 30_000])
def test_hostile_texts_are_unreadable(text):
    assert TASK.answer(text) is None
    assert TASK.answer_lenient(text) is None


@given(st.text(alphabet='UDLRudlr[]",` \n{}', max_size=40))
def test_what_is_read_is_canonical_and_reads_as_itself(text):
    for answer in (TASK.answer(text), TASK.answer_lenient(text)):
        if answer is not None:
            assert TASK.is_canonical(answer)
            assert TASK.answer(answer) == TASK.answer_lenient(answer) == answer


@given(st.lists(st.text("UDLR", max_size=4)))
def test_joined_lists_are_the_list_of_all(parts):
    lists = [written([*part]) for part in parts]
    assert json.loads(TASK.join(*lists)) == [move for part in parts for move in part]
    assert moves_of(TASK.join(*lists)) == "".join(parts)
