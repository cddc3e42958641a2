"""Replies that fish for a reward: the verdict of each is documented in docs/math-reward.md."""

import pytest

from flowzoo.reward import MathOptions, score_batch

CANDIDATES = [
    ("\\boxed{41, 42}", "42"),
    ("\\boxed{42 \\text{ or } 41}", "42"),
    ("\\boxed{\\{41, 42\\}}", "42"),
    ("\\boxed{41} and \\boxed{42}", "42"),
    ("\\boxed{41}, \\boxed{42}, \\boxed{43}", "42"),
    ("$40$ or $41$ or $42$", "42"),
    ("\\boxed{\\{1,2,\\ldots,100\\}}", "42"),
    ("\\boxed{42 \\pm 1}", "42"),
    ("\\boxed{A,B,C,D}", "C"),
    ("A B C D", "C"),
    ("(A) or (C)", "C"),
    ("\\boxed{1,2,3}", "1,2"),
    ("1728", "1331 and 1728"),
]
EMPTY = ["\\boxed{}", "\\boxed{ }", "42 \\boxed{}", "\\boxed{42} \\boxed{}", "\\boxed", "\\boxed{"]
FREE = [("\\boxed{x}", "42"), ("\\boxed{n}", "42"), ("\\boxed{x=x}", "x=42"), ("\\boxed{l}", "1")]
RELATIONS = [
    ("\\boxed{43=42}", "42"),
    ("\\boxed{42=43}", "42"),
    ("\\boxed{y=42}", "x=42"),
    ("\\boxed{x^2+5=0}", "x^2+1=0"),
    ("\\boxed{x+y=42}", "42"),
    ("\\boxed{z=41=42}", "42"),
]


@pytest.mark.parametrize(("reply", "gold"), [*CANDIDATES, *FREE, *RELATIONS])
def test_candidates_free_symbols_and_relations_are_no_values(reply: str, gold: str) -> None:
    assert score_batch([reply], [gold]).scores == [0.0]


@pytest.mark.parametrize("reply", EMPTY)
def test_an_empty_box_is_no_answer_and_nothing_else_is_asked(reply: str) -> None:
    for read in ("auto", "strict", "lenient"):
        options = MathOptions(read=read)
        assert score_batch([reply], ["7"], options).scores == [0.0]
    assert score_batch(["42 \\boxed{}"], ["42"]).statuses == ["no_answer"]


def test_an_echo_of_the_problem_is_no_answer() -> None:
    echo = "What is 6 times 7? The question mentions 42. I do not know."
    assert score_batch([echo], ["42"]).scores == [0.0]
    assert score_batch([echo], ["42"], MathOptions(read="strict")).statuses == ["no_answer"]


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("\\boxed{42}\nWait, it is \\boxed{41}", 0.0),
        ("\\boxed{41}\nWait, it is \\boxed{42}", 1.0),
        ("\\boxed{42}. On reflection the answer is 41.", 1.0),
        ("\\boxed{41}. On reflection the answer is 42.", 0.0),
        ("<think>\\boxed{42}</think> \\boxed{41}", 0.0),
        ("<think>so \\boxed{42}", 0.0),
    ],
)
def test_the_last_box_decides(reply: str, score: float) -> None:
    assert score_batch([reply], ["42"]).scores == [score]


def test_a_gold_shaped_text_outside_the_box_is_not_read() -> None:
    reply = "\\frac{1}{2} it is, 1/2, the answer is $\\frac{1}{2}$. \\boxed{3}"
    assert score_batch([reply], ["\\frac{1}{2}"]).scores == [0.0]
    assert score_batch([reply.replace("\\boxed{3}", "")], ["\\frac{1}{2}"]).scores == [1.0]
    strict = MathOptions(read="strict")
    assert score_batch([reply.replace("\\boxed{3}", "")], ["0.5"], strict).scores == [0.0]


@pytest.mark.parametrize(
    ("reply", "gold"),
    [
        ("\\boxed{2024-05-01}", "2024-01-05"),
        ("\\boxed{1:00}", "12:00"),
        ("\\boxed{50}", "50\\%"),
        ("\\boxed{5 km}", "5 cm"),
        ("\\boxed{0.333}", "1/3"),
        ("\\boxed{3.14}", "\\pi"),
        ("\\boxed{god}", "\\text{dog}"),
        ("\\boxed{10^{-20}}", "0"),
        ("\\boxed{100000000000}", "99999999999"),
        ("\\boxed{1,23}", "123"),
        ("\\boxed{4\u200b2}", "42"),
        ("\\boxed{²}", "2"),
        ("\\boxed{\u0445}", "x"),
    ],
)
def test_near_misses(reply: str, gold: str) -> None:
    assert score_batch([reply], [gold]).statuses == ["different"]
