"""Properties: reflexive, symmetric on plain values, blind to white space and to LaTeX spelling."""

from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flowzoo.reward import MathOptions, equivalence_classes, extract, is_gradable, score_batch

AS_GIVEN = MathOptions(read="answer", judge="none")

NUMBERS = st.fractions(-999, 999, max_denominator=99)


def written(number: Fraction) -> st.SearchStrategy[str]:
    top, bottom = number.numerator, number.denominator
    forms = [
        f"{top}/{bottom}",
        f"\\frac{{{top}}}{{{bottom}}}",
        f"\\dfrac{{{top}}}{{{bottom}}}",
        f"-\\frac{{{-top}}}{{{bottom}}}",
        f"x = {top}/{bottom}",
        f"\\left({top}/{bottom}\\right)",
        f"${top} / {bottom}$",
        f"\\boxed{{{top}/{bottom}}}",
        f"{top}/{bottom} \\text{{ cm}}",
    ]
    if bottom == 1:
        forms += [str(top), f"{top}.0", f" {top} ", f"{top}.", f"\\${top}", f"**{top}**"]
    return st.sampled_from(forms)


SYMBOLS = st.sampled_from(["x", "y", "\\pi", "\\theta", "2", "7", "a", "b"])


def terms(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, inner).map(lambda p: f"({p[0]}+{p[1]})"),
        st.tuples(inner, inner).map(lambda p: f"{p[0]} \\cdot {p[1]}"),
        st.tuples(inner, inner).map(lambda p: f"\\frac{{{p[0]}}}{{{p[1]}}}"),
        inner.map(lambda p: f"\\sqrt{{{p}}}"),
        inner.map(lambda p: f"({p})^{{2}}"),
        inner.map(lambda p: f"\\sin({p})"),
    )


FORMULAS = st.recursive(SYMBOLS, terms, max_leaves=6)
CONTAINERS = st.one_of(
    FORMULAS,
    st.lists(FORMULAS, min_size=2, max_size=4).map(lambda x: f"({', '.join(x)})"),
    st.lists(FORMULAS, min_size=2, max_size=4).map(lambda x: f"\\{{{', '.join(x)}\\}}"),
    st.tuples(NUMBERS, NUMBERS).map(lambda p: f"[{p[0]}, {p[1]})"),
    FORMULAS.map(lambda x: f"z = {x}"),
    FORMULAS.map(lambda x: f"z \\le {x}"),
)


def equal(a: str, b: str) -> bool:
    return score_batch([a], [b], AS_GIVEN).scores[0] == 1.0


@given(st.data(), NUMBERS)
def test_spellings_of_a_number_are_equal_both_ways(data, number):
    a, b = data.draw(written(number)), data.draw(written(number))
    assume(not ("cm" in a + b and "\\$" in a + b))  # other units: other quantities
    assert equal(a, b), (a, b)
    assert equal(b, a), (b, a)


@given(st.data(), NUMBERS, NUMBERS)
def test_different_numbers_are_different(data, a, b):
    if a != b:
        assert not equal(data.draw(written(a)), data.draw(written(b)))


@given(CONTAINERS)
def test_every_answer_equals_itself(text):
    assert equal(text, text)
    assert score_batch([f"so \\boxed{{{text}}}."], [text]).statuses == ["equal"]


@settings(deadline=None)
@given(CONTAINERS, CONTAINERS)
def test_symmetric(a, b):
    assert equal(a, b) == equal(b, a)


@settings(deadline=None)
@given(CONTAINERS, st.sampled_from([" ", "\\,", "\\; ", "\\quad "]))
def test_blind_to_space_and_spelling(text, space):
    loose = text.replace(",", f",{space}").replace("+", f"{space}+ ").replace("=", f" ={space}")
    other = loose.replace("\\frac", "\\dfrac").replace("(", "\\left(").replace(")", "\\right)")
    assert equal(loose, text), loose
    assert equal(other.replace("\\cdot", "\\times"), text), other


@settings(deadline=None)
@given(FORMULAS)
def test_a_sum_does_not_depend_on_its_order_and_one_more_is_another(text):
    assert equal(f"{text} + z", f"z + {text}")
    assert not equal(f"{text} + z + 1", f"z + {text}")


PARTS = [
    "\\frac", "{", "}", "(", ")", "\\sqrt", "^", "_", "1", "x", "\\sum", "\\int", "d", "|",
    "\\begin{pmatrix}", "\\end{pmatrix}", "&", "\\\\", "\\boxed{", "=", "<", ",", "and", "\\{",
    "\\}", "\\left", "\\right", "\\text{", "\\lim", "\\to", "\\choose", "\\cup", "[", "]", "!",
    "sin", "\\log", "°", "%", "\\pm", "\\in", "\\infty", "i", "e", ":", "\\approx", "$", "10",
]  # fmt: skip


@settings(deadline=None)
@given(
    st.text(max_size=120)
    | st.text("0123456789./,-+ ()[]{}\\$%x=frac^|<>&!_°'\"", max_size=120)
    | st.lists(st.sampled_from(PARTS), max_size=30).map(" ".join)
)
def test_no_text_raises(text):
    for read in ("auto", "answer", "strict", "lenient"):
        options = MathOptions(read=read, judge="none")  # type: ignore[arg-type]
        score_batch([text, text, "1/2"], ["42", "x+1", text], options)
    equivalence_classes([text, "x", "(1,2)", text + "1"])
    extract(text, "auto")
    if is_gradable(text):
        assert equal(text, text)


@pytest.mark.parametrize(
    "text", ["\\frac{1}{0}", "4 2", "x^", "][", "\\text{", "odd $n$", "f'", "\\zzz", "a = b = c"]
)
def test_even_unreadable_golds_equal_themselves(text):
    assert equal(text, text)
