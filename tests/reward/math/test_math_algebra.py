"""Expressions: the parser's readings, and what probing calls equal, different and undecided."""

import pytest

from flowzoo.reward import score_batch
from flowzoo.reward.math.clean import clean
from flowzoo.reward.math.numeric.probe import proportional, same_function
from flowzoo.reward.math.parser import AnswerSyntaxError, parse_scalar
from flowzoo.reward.math.tokens import tokenize
from flowzoo.reward.math.tree import AnswerTooLargeError, ExprNode


def tree(text: str) -> ExprNode:
    source = tokenize(clean(text))
    if source is None:
        raise AnswerSyntaxError
    return parse_scalar(source, 0, len(source.tokens))


SAME = [
    ("(x+1)^2", "x^2+2x+1"),
    ("\\sin \\cos \\theta", "\\sin(\\cos(\\theta))"),
    ("\\cos(x)^2", "\\cos^2 x"),
    ("\\sin 2x", "2\\sin x\\cos x"),
    ("\\tan^2 x + 1", "\\sec^2 x"),
    ("\\cosh^{-1}(a)", "\\operatorname{arcosh}\\left(a\\right)"),
    ("1\\frac12+3", "9/2"),
    ("-3\\frac{1}{2}", "-7/2"),
    ("1 \\frac{1}{b}", "1/b"),
    ("\\sqrt{\\sqrt2}", "2**(1/4)"),
    ("\\sqrt{1/n}", "1/\\sqrt n"),
    ("\\sqrt{x^2}", "|x|"),
    ("\\frac{2}{3\\sqrt[3]{x}^2}", "\\frac{2}{3x^{2/3}}"),
    ("\\sqrt[y]{\\sin x}", "\\sin^{\\frac{1}{y}}{\\left(x \\right)}"),
    ("\\log_2 8", "3"),
    ("\\ln x^2", "2 \\ln x"),
    ("\\log 100", "2"),
    ("e^{i\\pi}+1", "0"),
    ("(1+i)^2", "2i"),
    ("0.\\overline{3}", "1/3"),
    ("0.1\\overline{6}", "1/6"),
    ("\\binom{16}{2}", "{16 \\choose 2}"),
    ("x!!!", "((x!)!)!"),
    ("n!", "n (n-1)!"),
    ("17 \\bmod 5", "2"),
    ("\\gcd(12, 18)", "6"),
    ("\\max(5, 2, 17)", "17"),
    ("\\lceil 1.1 \\rceil", "2"),
    ("\\sum_{i=1}^{10} i", "55"),
    ("\\int x\\, dx", "\\int {x dx}"),
    ("\\int \\frac{dz}{z}", "\\int \\frac{1}{z}\\,dz"),
    ("\\int a+b\\,dx", "\\int (b+a) dx"),
    ("\\frac{d}{dt} x", "\\frac{d}{d t} x"),
    ("\\det \\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "-2"),
    ("a \\div b", "\\frac ab"),
    ("½", "0.5"),
    ("√2·x²", "x^2\\sqrt{2}"),
    ("1500E-1", "150"),
    ("\\frac{x^2-1}{x-1}", "x+1"),
]
DIFFERENT = [
    ("\\sqrt{x^2}", "x"),
    ("|x|", "x"),
    ("x", "y"),
    ("10^{20}+\\pi", "10^{20}+1+\\pi"),
    ("\\sqrt{10^{18}+1}", "10^9"),
    ("x^2+10^{12}x+1", "x^2+10^{12}x+2"),
    ("\\sin x", "\\cos x"),
    ("\\int x\\,dx", "\\int x^2\\,dx"),
    ("\\int x\\,dx", "\\int x\\,dy"),
    ("\\sum_{k=1}^n k", "\\sum_{k=1}^n k^2"),
    ("1/2x", "1/(2x)"),
    ("2^{-99}", "2^{-98}"),
    ("x^{2^3}", "x^{6}"),
    ("x_1", "x_2"),
    ("\\infty", "-\\infty"),
    ("\\ln x", "\\log x"),
    ("\\frac{1}{2004!}", "\\frac{1}{2006!}"),
]
UNDECIDED = [("9**9**9**9", "42"), ("1/0", "2/0")]
UNREADABLE = [
    "4 2", "x +", "\\frac{1}", "3.14.15", "(1", "1 < 2", "\\sqrt", "|x", "\\cup", "a^", "_",
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), SAME)
def test_one_function_in_two_spellings(a: str, b: str) -> None:
    assert same_function(tree(a), tree(b)) is True
    assert same_function(tree(b), tree(a)) is True


@pytest.mark.parametrize(("a", "b"), DIFFERENT)
def test_two_functions(a: str, b: str) -> None:
    assert same_function(tree(a), tree(b)) is False


@pytest.mark.parametrize(("a", "b"), UNDECIDED)
def test_out_of_range_is_undecided_and_never_equal(a: str, b: str) -> None:
    assert same_function(tree(a), tree(b)) is None
    assert score_batch([a], [b]).statuses == ["different"]
    assert score_batch([a], [a]).statuses == ["equal"]


@pytest.mark.parametrize("text", UNREADABLE)
def test_what_is_no_expression_is_not_guessed_at(text: str) -> None:
    with pytest.raises(AnswerSyntaxError):
        tree(text)


def test_bounds() -> None:
    with pytest.raises(AnswerTooLargeError):
        tree("1e401")
    with pytest.raises(AnswerTooLargeError):
        tree("(" * 70 + "1" + ")" * 70)
    with pytest.raises(AnswerTooLargeError):
        tree("+".join(["x"] * 1_000))
    assert tree("2^{1000}").op == "num"
    assert tree("2^{5000}").op == "pow"


def test_proportional_needs_a_constant_factor() -> None:
    assert proportional(tree("2x+4"), tree("x+2")) == pytest.approx(2)
    assert proportional(tree("2x+4"), tree("x+1")) is None
    assert proportional(tree("x-x"), tree("x")) is None
    assert proportional(tree("x^2+5"), tree("x^2+1")) is None
