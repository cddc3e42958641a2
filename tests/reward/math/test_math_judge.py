"""Expressions: the parser's readings, what probing decides, and the judge by sympy."""

import json

import pytest

from flowzoo.reward import MathOptions, score_batch
from flowzoo.reward.math import judge as math_judge
from flowzoo.reward.math.answer import read_answer
from flowzoo.reward.math.clean import clean
from flowzoo.reward.math.judge import _expression, _NotConvertibleError, agree, judge, setup
from flowzoo.reward.math.parser import AnswerSyntaxError, parse_scalar
from flowzoo.reward.math.probe import proportional, same_function
from flowzoo.reward.math.tokens import tokenize
from flowzoo.reward.math.tree import AnswerTooLargeError, ExprNode
from flowzoo.sandbox import JobResult
from tests.tables import read_tables

TABLES, ALGEBRA = read_tables(__file__, "judge"), read_tables(__file__, "algebra")

HEAVY = [
    "2^{x^{2}}", "x^{x^x}", "9**9**9", "(-3)^{(-3)^{27}}", "a^b^c", "100!", "x!",
    "\\binom{n}{50}", "\\sum_{n=1}^9 n^x", "\\int x dx", "\\lim_{x\\to0} x", "2^{1000}", "x^{100}",
    "10**1000", "1" * 60, "f(x)", "\\begin{pmatrix} 1 \\\\ x \\end{pmatrix}",
]  # fmt: skip
LIGHT = ["x^2-2", "|z|", "e^{2x}+1", "x^{10} \\cdot y^{2}", "\\frac{a}{b}", "\\Gamma(3)"]


@pytest.mark.parametrize("text", HEAVY)
def test_sympy_is_given_no_heavy_expression(text):
    node = read_answer(text).node
    with pytest.raises(_NotConvertibleError):
        _expression(node)
    assert not agree("(-1,1)", f"{text} < 1")


@pytest.mark.parametrize("text", LIGHT)
def test_sympy_is_given_ordinary_expressions(text):
    _expression(read_answer(text).node)


def test_long_texts_are_different_without_sympy(monkeypatch):
    monkeypatch.setattr(math_judge, "_ask", lambda pairs, deadline: 1 / 0)
    assert judge([("(1,2)", "x^2" + "+0" * 200 + "<1")], 0.3) == ["different"]


@pytest.mark.parametrize(("answer", "gold", "expected"), TABLES["pairs"])
def test_sympy_agrees_with_mathematics(answer, gold, expected):
    assert setup()(json.dumps([answer, gold]).encode()) == (b"1" if expected else b"0")


def test_no_text_reaches_a_parser_of_sympy(monkeypatch):
    import sympy

    def refuse(*args: object, **kwargs: object) -> object:
        raise AssertionError("text was given to sympy")

    for name in ("parse_expr", "parsing.sympy_parser.parse_expr", "parsing.sympy_parser.eval_expr"):
        monkeypatch.setattr(f"sympy.{name}", refuse)
    assert sympy.parse_expr is refuse
    assert agree("(-3,3)", "x^2<9")
    assert agree("||x||z||", "|xz|")


def test_open_pairs_reach_the_pool_and_are_cached(monkeypatch):
    monkeypatch.setattr(math_judge, "_verdicts", {})
    pred, gold = "z \\in [-7,-1] \\cup [1,7]", "1\\leq z^2\\leq 49"
    without = MathOptions(judge="none")
    assert score_batch([pred], [gold], without).statuses == ["different"]
    assert score_batch([pred], [gold]).statuses == ["equal"]
    monkeypatch.setattr(math_judge, "_ask", lambda pairs, deadline: 1 / 0)
    assert score_batch([pred], [gold]).statuses == ["equal"]


def test_timeouts_and_crashes_are_statuses_and_are_cached(monkeypatch):
    class Pool:
        def run(self, jobs: list[bytes], deadline: float) -> list[JobResult]:
            return [JobResult("timeout"), JobResult("memory"), JobResult("crashed", b"KeyError: 1")]

    monkeypatch.setattr(math_judge, "_verdicts", {})
    monkeypatch.setattr(math_judge, "_pool", Pool)
    pairs = [("(1,2)", f"x^2<{number}") for number in range(3)]
    assert judge(pairs, 0.3) == ["timeout", "crashed", "crashed"]
    monkeypatch.setattr(math_judge, "_ask", lambda pairs, deadline: 1 / 0)
    assert judge(pairs, 0.3) == ["timeout", "crashed", "crashed"]


@pytest.mark.parametrize(
    ("result", "deadline"), [(JobResult("timeout"), 1.0), (JobResult("crashed"), 0.3)]
)
def test_a_longer_deadline_and_a_dead_process_ask_again(monkeypatch, result, deadline):
    results = [result, JobResult("ok", b"1")]

    class Pool:
        def run(self, jobs: list[bytes], deadline: float) -> list[JobResult]:
            return [results.pop(0) for _ in jobs]

    monkeypatch.setattr(math_judge, "_verdicts", {})
    monkeypatch.setattr(math_judge, "_pool", Pool)
    pair = ("(1,2)", "x^2<0")
    assert judge([pair], 0.3) == [result.status]
    assert judge([pair], deadline) == ["equal"]
    assert judge([pair], 0.1) == ["equal"]


def test_a_pair_over_its_deadline_is_killed(monkeypatch):
    monkeypatch.setattr(math_judge, "_verdicts", {})
    powers = " + ".join(f"(x-{n})^{{99}}(x+{n})^{{98}}" for n in range(1, 9))
    pair = ("(0,1)", f"{powers} < x")
    assert judge([pair], 0.3) == ["timeout"]
    assert judge([("(1,2)", "x^2<0")], 60.0) == ["different"]


def tree(text: str) -> ExprNode:
    source = tokenize(clean(text))
    if source is None:
        raise AnswerSyntaxError
    return parse_scalar(source, 0, len(source.tokens))


@pytest.mark.parametrize(("a", "b"), ALGEBRA["same"])
def test_one_function_in_two_spellings(a, b):
    assert same_function(tree(a), tree(b)) is True
    assert same_function(tree(b), tree(a)) is True


@pytest.mark.parametrize(("a", "b"), ALGEBRA["different"])
def test_two_functions(a, b):
    assert same_function(tree(a), tree(b)) is False


@pytest.mark.parametrize(("a", "b"), ALGEBRA["undecided"])
def test_out_of_range_is_undecided_and_never_equal(a, b):
    assert same_function(tree(a), tree(b)) is None
    assert score_batch([a], [b]).statuses == ["different"]
    assert score_batch([a], [a]).statuses == ["equal"]


@pytest.mark.parametrize("text", ALGEBRA["unreadable"])
def test_what_is_no_expression_is_not_guessed_at(text):
    with pytest.raises(AnswerSyntaxError):
        tree(text)


def test_bounds():
    with pytest.raises(AnswerTooLargeError):
        tree("1e401")
    with pytest.raises(AnswerTooLargeError):
        tree("(" * 70 + "1" + ")" * 70)
    with pytest.raises(AnswerTooLargeError):
        tree("+".join(["x"] * 1_000))
    assert tree("2^{1000}").op == "num"
    assert tree("2^{5000}").op == "pow"


def test_proportional_needs_a_constant_factor():
    assert proportional(tree("2x+4"), tree("x+2")) == pytest.approx(2)
    assert proportional(tree("2x+4"), tree("x+1")) is None
    assert proportional(tree("x-x"), tree("x")) is None
    assert proportional(tree("x^2+5"), tree("x^2+1")) is None
