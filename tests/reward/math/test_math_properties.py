"""Generated answers: reflexive, symmetric, blind to white space and to LaTeX spelling.

Respellings of answers of every sort are paid, near misses are not, both ways;
`python -m benchmarks.grading.matrix` draws as many as one likes.
"""

import random
import re
from fractions import Fraction
from functools import cache
from itertools import islice

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.grading.cases import SORTS, Case
from benchmarks.grading.matrix import Report, flowzoo, groups, measure
from flowzoo.reward import MathOptions, equivalence_classes, extract, is_gradable, score_batch
from tests.tables import shared_rows

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


_WORDS = re.compile(r"\\(?:text|begin|\$|left|\{|math|overline|dots)")


def golds() -> list[str]:
    """All final answers of both files."""
    rows = [*shared_rows("math500/test.jsonl"), *shared_rows("gsm8k/test.jsonl")]
    return [row["answer"].rpartition("####")[2].strip() for row in rows]


def another_digit(gold: str, rng: random.Random) -> str:
    """The gold with one digit changed; itself where it has none."""
    places = [match.start() for match in re.finditer(r"\d", gold)]
    if not places:
        return gold
    idx = rng.choice(places)
    digit = rng.choice([char for char in "0123456789" if char != gold[idx]])
    return gold[:idx] + digit + gold[idx + 1 :]


def another_sign(gold: str, rng: random.Random) -> str:
    """The gold with one sign changed, or with a minus in front; itself where neither is said."""
    places = [match.start() for match in re.finditer(r"[+-]", gold)]
    if places:
        idx = rng.choice(places)
        return gold[:idx] + ("-" if gold[idx] == "+" else "+") + gold[idx + 1 :]
    is_number = gold[:1].isdigit() or (gold[:1] == "\\" and not _WORDS.match(gold))
    return f"-{gold}" if is_number and gold != "0" else gold


def test_identity_is_paid_and_one_changed_character_is_noticed():
    rng, options = random.Random(3), MathOptions(judge="none")
    given = golds()
    assert len(given) > 1_800
    same = score_batch([rf"so \boxed{{{gold}}}." for gold in given], given, options)
    assert [g for g, s in zip(given, same.scores, strict=True) if not s] == []
    for change in (another_digit, another_sign):
        rows = [(change(gold, rng), gold) for gold in given]
        rows = [(pred, gold) for pred, gold in rows if pred != gold]
        assert len(rows) > 1_700
        statuses = score_batch(
            [rf"so \boxed{{{pred}}}." for pred, _ in rows], [gold for _, gold in rows], options
        )
        assert [row for row, s in zip(rows, statuses.scores, strict=True) if s] == []


GROUPS = 8
"""Values of a sort, each with two respellings and two near misses."""


@cache
def report(sort: str) -> Report:
    drawn = groups("matrix", [member for member in SORTS if member.name == sort])
    return measure(list(islice(drawn, GROUPS)), flowzoo)


NAMES = [sort.name for sort in SORTS]


def lines(cases: list[Case]) -> list[str]:
    return [f"{case.gold()}   |   {case.reply()}" for case in cases]


@pytest.mark.parametrize("sort", NAMES)
def test_respellings_are_paid(sort: str):
    assert lines([case for case in report(sort).failures if not case.miss]) == []


@pytest.mark.parametrize("sort", NAMES)
def test_near_misses_are_not(sort: str):
    assert lines([case for case in report(sort).failures if case.miss]) == []


@pytest.mark.parametrize("sort", NAMES)
def test_verdicts_are_symmetric_and_transitive(sort: str):
    assert report(sort).broken == {}
