"""Pairs found by attack: each group is one cause, with answers on both sides of the line."""

import pytest

from flowzoo.reward import MathOptions, equivalence_classes, score_batch
from tests.tables import read_tables

TABLES = read_tables(__file__)

BARE = MathOptions(read="answer", judge="none")


def is_equal(gold: str, answer: str) -> bool:
    """True if an extracted answer is equal to a gold, judged without the pool."""
    return score_batch([answer], [gold], BARE).scores == [1.0]


@pytest.mark.parametrize(("gold", "answer"), TABLES["equal"])
def test_equal(gold, answer):
    assert is_equal(gold, answer)
    assert is_equal(answer, gold) or "=" in answer or "approx" in answer


@pytest.mark.parametrize(("gold", "answer"), TABLES["different"])
def test_different(gold, answer):
    assert not is_equal(gold, answer)


@pytest.mark.parametrize("answer", TABLES["bounds"])
def test_a_bound_or_a_membership_never_reaches_the_judge_for_a_number(answer):
    assert score_batch([rf"\boxed{{{answer}}}"], ["7"]).statuses == ["different"]


@pytest.mark.parametrize(("reply", "gold"), TABLES["rejected"])
def test_a_rejected_answer_is_not_given(reply, gold):
    assert score_batch([reply], [gold]).scores == [0.0]


@pytest.mark.parametrize("answer", ["x" + "!" * 1400, "x" + " \\bmod 7" * 200])
def test_a_tree_deepened_by_postfixes_is_too_big(answer):
    assert score_batch([answer], ["x+1"], BARE).statuses == ["too_big"]
    assert equivalence_classes([answer, "x+1"]) == (0, 1)


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize("high", ["200", "n"])
@pytest.mark.parametrize("binder", ["sum", "prod"])
def test_nested_sums_do_not_multiply_to_a_hang(binder, high):
    nested = "".join(rf"\{binder}_{{{name}=1}}^{{{high}}}" for name in "abcdfghjklmopqrstuvw")
    assert score_batch([f"{nested} ab"], ["5"], BARE).statuses == ["different"]
    assert score_batch([f"{nested} ab"], [f"{nested} ba+1"], BARE).statuses == ["different"]


@pytest.mark.usefixtures("little_work")
def test_a_long_gold_of_open_boxes_is_read_in_linear_time():
    assert score_batch(["5"], ["\\fbox{" * 1_000_000]).statuses == ["bad_gold"]
