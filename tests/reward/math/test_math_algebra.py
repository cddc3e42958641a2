"""Expressions: the parser's readings, and what probing calls equal, different and undecided."""

import pytest

from flowzoo.reward import score_batch
from flowzoo.reward.math.clean import clean
from flowzoo.reward.math.parser import AnswerSyntaxError, parse_scalar
from flowzoo.reward.math.probe import proportional, same_function
from flowzoo.reward.math.tokens import tokenize
from flowzoo.reward.math.tree import AnswerTooLargeError, ExprNode
from tests.tables import read_tables

TABLES = read_tables(__file__)


def tree(text: str) -> ExprNode:
    source = tokenize(clean(text))
    if source is None:
        raise AnswerSyntaxError
    return parse_scalar(source, 0, len(source.tokens))


@pytest.mark.parametrize(("a", "b"), TABLES["same"])
def test_one_function_in_two_spellings(a, b):
    assert same_function(tree(a), tree(b)) is True
    assert same_function(tree(b), tree(a)) is True


@pytest.mark.parametrize(("a", "b"), TABLES["different"])
def test_two_functions(a, b):
    assert same_function(tree(a), tree(b)) is False


@pytest.mark.parametrize(("a", "b"), TABLES["undecided"])
def test_out_of_range_is_undecided_and_never_equal(a, b):
    assert same_function(tree(a), tree(b)) is None
    assert score_batch([a], [b]).statuses == ["different"]
    assert score_batch([a], [a]).statuses == ["equal"]


@pytest.mark.parametrize("text", TABLES["unreadable"])
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
