"""Pairs found by attack: each group is one cause, with answers on both sides of the line."""

from __future__ import annotations

import pytest

from flowzoo.reward import MathOptions, equivalence_classes, score_batch

BARE = MathOptions(read="answer", judge="none")


def is_equal(gold: str, answer: str) -> bool:
    """True if an extracted answer is equal to a gold, judged without the pool."""
    return score_batch([answer], [gold], BARE).scores == [1.0]


EQUAL = [
    ("ab^2", r"a \cdot b^2"),  # an exponent belongs to the last letter
    (r"\frac{a}{b}", "ab^{-1}"),
    ("f'", "f'"),
    (".5", "1/2"),
    (r"\sin 30^\circ", r"\frac12"),  # degrees inside an argument
    (r"2\mathrm{i}", "2i"),  # an upright letter is no unit
    (r"12\text{ m}", "12 m"),
    ("3:30 p.m.", "3:30 PM"),
    ("120", "5!=120"),
    ("(-\\infty,\\infty)", r"\mathbb{R}"),
    ("a=3,b=4", "b=4,a=3"),
    ("a=3,b=4", "3,4"),
    ("x=-5, p=7", "-5, 7"),  # in the order of the letters, or as written
    ("(1,2)", "y=2,x=1"),
    (r"\sqrt{2}", r"\sqrt{2} \approx 1.414"),
    (r"\begin{cases}x&x>0\\0&x<0\end{cases}", r"\begin{cases} x & x>0 \\ 0 & x<0 \end{cases}"),
]  # fmt: skip
DIFFERENT = [
    ("(ab)^2", "ab^2"),
    ("5", ".5"),
    (".5", "5"),
    ("f'", "f"),
    ("7", "...7"),
    ("7", "7, ..."),
    (r"\sin 30", r"\sin 30^\circ"),
    ("7", r"3+4\mathrm{i}"),
    ("7", r"7\text{ x}^2"),
    ("7", r"7\text{ tenths}"),
    ("7", r"7\text{ maybe}"),
    ("7", r"7\text{ minimum}"),
    ("7", r"7 \approx 8"),
    ("7", r"\not=7"),
    ("120", "5!=121"),
    ("1,2", "1<x<2"),  # a range is no pair
    ("-1<x<1", "-1,1"),
    ("(1,2)", "y=1,x=2"),
    ("a=3,b=4", "4,3"),
    (r"\{1,2\}", r"\{\{1\},\{2\}\}"),
    ("1", r"\tanh 50"),
    (r"\begin{pmatrix}1\end{pmatrix}", r"\begin{Vmatrix}1\end{Vmatrix}"),
    ("(-\\infty,\\infty)", r"\mathbb{R}^2"),
]


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_equal(gold: str, answer: str) -> None:
    assert is_equal(gold, answer)
    assert is_equal(answer, gold) or "=" in answer or "approx" in answer


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_different(gold: str, answer: str) -> None:
    assert not is_equal(gold, answer)


@pytest.mark.parametrize(
    "answer", [r"\neq 7", r"\le 7", "7|8", "7||8", r"7 \mid x", r"7\in\{7\}", r"\{x | x > 7\}"]
)
def test_a_bound_or_a_membership_never_reaches_the_judge_for_a_number(answer: str) -> None:
    assert score_batch([rf"\boxed{{{answer}}}"], ["7"]).statuses == ["different"]


@pytest.mark.parametrize(
    ("reply", "gold"),
    [
        ("Not A", "A"), ("The answer is not A", "A"), ("I would eliminate A", "A"),
        ("(A) is incorrect", "A"), ("It is not 5", "5"), ("5 is wrong", "5"),
        ("The answer is .5", "5"),
    ],
)  # fmt: skip
def test_a_rejected_answer_is_not_given(reply: str, gold: str) -> None:
    assert score_batch([reply], [gold]).scores == [0.0]


@pytest.mark.parametrize("answer", ["x" + "!" * 1400, "x" + " \\bmod 7" * 200])
def test_a_tree_deepened_by_postfixes_is_too_big(answer: str) -> None:
    assert score_batch([answer], ["x+1"], BARE).statuses == ["too_big"]
    assert equivalence_classes([answer, "x+1"]) == (0, 1)


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize("high", ["200", "n"])
@pytest.mark.parametrize("binder", ["sum", "prod"])
def test_nested_sums_do_not_multiply_to_a_hang(binder: str, high: str) -> None:
    nested = "".join(rf"\{binder}_{{{name}=1}}^{{{high}}}" for name in "abcdfghjklmopqrstuvw")
    assert score_batch([f"{nested} ab"], ["5"], BARE).statuses == ["different"]
    assert score_batch([f"{nested} ab"], [f"{nested} ba+1"], BARE).statuses == ["different"]


@pytest.mark.usefixtures("little_work")
def test_a_long_gold_of_open_boxes_is_read_in_linear_time() -> None:
    assert score_batch(["5"], ["\\fbox{" * 1_000_000]).statuses == ["bad_gold"]
