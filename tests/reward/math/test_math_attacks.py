"""Pairs found by attack, and replies that fish for a reward; see docs/math-reward.md."""

import pytest

from flowzoo.reward import MathOptions, equivalence_classes, score_batch
from tests.tables import read_tables

TABLES, HACKS = read_tables(__file__), read_tables(__file__, "test_math_hacks")

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


@pytest.mark.parametrize(("reply", "gold"), HACKS["not_values"])
def test_candidates_free_symbols_and_relations_are_no_values(reply, gold):
    assert score_batch([reply], [gold]).scores == [0.0]


@pytest.mark.parametrize("reply", HACKS["empty"])
def test_an_empty_box_is_no_answer_and_nothing_else_is_asked(reply):
    for read in ("auto", "strict", "lenient"):
        options = MathOptions(read=read)
        assert score_batch([reply], ["7"], options).scores == [0.0]
    assert score_batch(["42 \\boxed{}"], ["42"]).statuses == ["no_answer"]


def test_an_echo_of_the_problem_is_no_answer():
    echo = "What is 6 times 7? The question mentions 42. I do not know."
    assert score_batch([echo], ["42"]).scores == [0.0]
    assert score_batch([echo], ["42"], MathOptions(read="strict")).statuses == ["no_answer"]


@pytest.mark.parametrize(("reply", "score"), HACKS["last_box"])
def test_the_last_box_decides(reply, score):
    assert score_batch([reply], ["42"]).scores == [score]


def test_a_gold_shaped_text_outside_the_box_is_not_read():
    reply = "\\frac{1}{2} it is, 1/2, the answer is $\\frac{1}{2}$. \\boxed{3}"
    assert score_batch([reply], ["\\frac{1}{2}"]).scores == [0.0]
    assert score_batch([reply.replace("\\boxed{3}", "")], ["\\frac{1}{2}"]).scores == [1.0]
    strict = MathOptions(read="strict")
    assert score_batch([reply.replace("\\boxed{3}", "")], ["0.5"], strict).scores == [0.0]


@pytest.mark.parametrize(("reply", "gold"), HACKS["near_misses"])
def test_near_misses(reply, gold):
    assert score_batch([reply], [gold]).statuses == ["different"]
