"""Replies that fish for a reward: the verdict of each is documented in docs/math-reward.md."""

import pytest

from flowzoo.reward import MathOptions, score_batch
from tests.tables import read_tables

TABLES = read_tables(__file__)


@pytest.mark.parametrize(("reply", "gold"), TABLES["not_values"])
def test_candidates_free_symbols_and_relations_are_no_values(reply, gold):
    assert score_batch([reply], [gold]).scores == [0.0]


@pytest.mark.parametrize("reply", TABLES["empty"])
def test_an_empty_box_is_no_answer_and_nothing_else_is_asked(reply):
    for read in ("auto", "strict", "lenient"):
        options = MathOptions(read=read)
        assert score_batch([reply], ["7"], options).scores == [0.0]
    assert score_batch(["42 \\boxed{}"], ["42"]).statuses == ["no_answer"]


def test_an_echo_of_the_problem_is_no_answer():
    echo = "What is 6 times 7? The question mentions 42. I do not know."
    assert score_batch([echo], ["42"]).scores == [0.0]
    assert score_batch([echo], ["42"], MathOptions(read="strict")).statuses == ["no_answer"]


@pytest.mark.parametrize(("reply", "score"), TABLES["last_box"])
def test_the_last_box_decides(reply, score):
    assert score_batch([reply], ["42"]).scores == [score]


def test_a_gold_shaped_text_outside_the_box_is_not_read():
    reply = "\\frac{1}{2} it is, 1/2, the answer is $\\frac{1}{2}$. \\boxed{3}"
    assert score_batch([reply], ["\\frac{1}{2}"]).scores == [0.0]
    assert score_batch([reply.replace("\\boxed{3}", "")], ["\\frac{1}{2}"]).scores == [1.0]
    strict = MathOptions(read="strict")
    assert score_batch([reply.replace("\\boxed{3}", "")], ["0.5"], strict).scores == [0.0]


@pytest.mark.parametrize(("reply", "gold"), TABLES["near_misses"])
def test_near_misses(reply, gold):
    assert score_batch([reply], [gold]).statuses == ["different"]
