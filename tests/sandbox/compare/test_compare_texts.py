from __future__ import annotations

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowzoo.errors import UsageError
from flowzoo.sandbox.compare import kernel as compare_kernel
from flowzoo.sandbox.compare import outputs as compare
from flowzoo.sandbox.compare.outputs import text_matches, texts_match
from flowzoo.sandbox.program import EXACT, TOKENS, Compare

NUMBER = Compare("number", 1e-6, 1e-6)


@pytest.fixture(params=["python", "kernel"])
def path(request, monkeypatch):
    """Each row is judged by the plain path and, forced to it, by the compiled one."""
    monkeypatch.setattr(compare, "LOAD_ABOVE", 0)
    monkeypatch.setattr(compare, "LONG", 0)
    monkeypatch.setattr(compare, "BATCH_ABOVE", 0 if request.param == "kernel" else math.inf)
    return request.param


@pytest.mark.parametrize(
    ("output", "expected", "rule", "same"),
    [
        ("1 2\n", "1 2\n", EXACT, True),
        ("1 2", "1 2\n", EXACT, False),
        (" 1\t2\r\n\n", "1 2\n", TOKENS, True),
        ("", " \n", TOKENS, True),
        ("", "0", TOKENS, False),
        ("1 2", "12", TOKENS, False),
        ("1 2 3", "1 2", TOKENS, False),
        ("1\u00a02", "1 2", TOKENS, False),
        ("π ≈", "π\n≈", TOKENS, True),
        (b"\xff", "\ufffd", TOKENS, False),
        (b"\xff", "\udcff", EXACT, False),
        ("\udcff", "\udcff", EXACT, False),
        ("\ud800", "\ud800", NUMBER, False),
        ("a\0b", "a", TOKENS, False),
        ("0.3333333", "0.33333333333", NUMBER, True),
        ("0.3333", "0.33333333333", NUMBER, False),
        ("1.0000015", "1.0", NUMBER, False),
        ("1e3", "1000.0", NUMBER, True),
        ("2.", "2", NUMBER, True),
        (".5", "0.5", NUMBER, True),
        ("+7", "007", NUMBER, True),
        ("-0", "0", NUMBER, True),
        ("-7", "7", NUMBER, False),
        ("1000000001", "1000000000", NUMBER, False),
        ("1000000001.0", "1000000000", NUMBER, False),
        ("1e9", "1000000007", NUMBER, False),
        ("1000000500.0", "1000000007", NUMBER, False),
        ("1000000007.0", "1000000007", NUMBER, True),
        ("1000000007.00", "1.000000007e9", NUMBER, True),
        ("1000000007", "1e9", NUMBER, False),
        ("1000000500", "1000000007.0", NUMBER, False),
        ("1000000007.25", "1000000007", NUMBER, False),
        ("1000000006.9999999", "1000000007", NUMBER, True),
        ("2.9999999", "3", NUMBER, True),
        ("2.99999", "3", NUMBER, False),
        ("1000000000500", "1e12", NUMBER, False),
        ("1000000000000.5", "1e12", NUMBER, True),
        ("9007199254740992.0", "9007199254740993", NUMBER, True),
        ("9007199254740990.0", "9007199254740993", NUMBER, False),
        ("1.2345678901234567e+20", "1.2345678901234569e+20", NUMBER, True),
        ("1e+20", "100000000000000000000", NUMBER, True),
        ("1.0000001e+20", "100000000000000000000", NUMBER, False),
        ("123456789012345678901", "1.2345678901234568e+20", NUMBER, True),
        ("-1e9", "1000000000", NUMBER, False),
        ("-0.0", "0", NUMBER, True),
        ("1e0", "01", NUMBER, True),
        (str(2**53 + 1), str(2**53), NUMBER, False),
        ("9" * 5000, "9" * 4999 + "8", NUMBER, False),
        ("0" * 5000 + "9", "9", NUMBER, True),
        ("nan", "nan", NUMBER, True),
        ("nan", "NaN", NUMBER, False),
        ("inf", "1e999", NUMBER, False),
        ("1e999", "2e999", NUMBER, False),
        ("1e-999", "0", NUMBER, True),
        ("1_000", "1000", NUMBER, False),
        ("0x10", "16", NUMBER, False),
        ("1e", "1", NUMBER, False),
        (".", "0", NUMBER, False),
        ("+", "0", NUMBER, False),
        ("--1", "1", NUMBER, False),
        ("١", "1", NUMBER, False),
        ("x 1.0", "x 1", NUMBER, True),
        ("1.0 y", "1 x", NUMBER, False),
        ("0.1000000000000000000000000001", "0.1", NUMBER, True),
    ],
)
def test_one_row(path, output, expected, rule, same):
    assert texts_match([output], [expected], [rule]) == [same]


def test_rows_do_not_leak_into_each_other(path):
    outputs = ["1", "", "2 3", "4.0", "x"]
    expected = ["1", "1", "2", "4", "x"]
    rules = [TOKENS, TOKENS, TOKENS, NUMBER, EXACT]
    assert texts_match(outputs, expected, rules) == [True, False, False, True, True]
    assert texts_match([], [], []) == []


tokens = st.one_of(
    st.integers().map(str),
    st.floats().map(repr),
    st.decimals(places=3, allow_nan=False, allow_infinity=False).map(str),
    st.from_regex(r"[-+]?[0-9]{0,25}\.?[0-9]{0,25}([eE][-+]?[0-9]{0,4})?", fullmatch=True),
    st.text(max_size=4),
)
texts = st.lists(st.tuples(tokens, st.sampled_from([" ", "\n", "\t", "\r\n", "\x1c", ""]))).map(
    lambda parts: "".join(token + gap for token, gap in parts)
)


@st.composite
def close_pairs(draw):
    """Two texts that mostly agree: numbers are written anew or moved by about the tolerance."""
    left, right = [], []
    for _ in range(draw(st.integers(0, 4))):
        value = draw(st.floats(-1e9, 1e9))
        step = draw(st.sampled_from([0.0, 9.99e-7, 1e-6, 1.01e-6, 1e-3]))
        moved = value + step * max(1.0, abs(value)) * draw(st.sampled_from([-1, 1]))
        left.append(draw(st.sampled_from([repr(value), f"{value:.12e}", f"{value:.6f}"])))
        right.append(repr(moved))
    return " ".join(left), "\n".join(right)


rules = st.builds(
    Compare,
    st.sampled_from(["exact", "tokens", "number"]),
    st.sampled_from([0.0, 1e-9, 1e-6, 0.5]),
    st.sampled_from([0.0, 1e-6, 1e300]),
)


@settings(deadline=None, max_examples=75)
@given(st.lists(st.tuples(st.one_of(st.tuples(texts, texts), close_pairs()), rules), max_size=8))
def test_the_kernel_answers_as_plain_python_does(rows):
    outputs = [pair[0].encode(errors="surrogatepass") for pair, _ in rows]
    expected = [pair[1] for pair, _ in rows]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LOAD_ABOVE", "BATCH_ABOVE", "LONG"):
            patch.setattr(compare, name, 0)
        compiled = texts_match(outputs, expected, [rule for _, rule in rows])
    plain = [
        text_matches(output, text.encode(), rule)
        for output, text, (_, rule) in zip(outputs, expected, rows, strict=True)
    ]
    assert compiled == plain


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_read_as_python_reads_it(value):
    """With no tolerance at all, another spelling of the same double is equal, its neighbor not."""
    none = Compare("number", 0.0, 0.0)
    outputs = [f"{value:.17e}", repr(math.nextafter(value, math.inf))]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LOAD_ABOVE", "BATCH_ABOVE"):
            patch.setattr(compare, name, 0)
        assert texts_match(outputs, [repr(value)] * 2, [none] * 2)[0]
        assert not texts_match(outputs, [repr(value)] * 2, [none] * 2)[1] or abs(value) > 1.7e308


@pytest.mark.parametrize("digit", ["1x", "0.5", "0e9x"])
def test_hostile_tokens_take_no_quadratic_time(path, digit):
    junk = digit[0] * 500_000 + digit[1:]
    texts_match(["1.5"], ["7.25"], [NUMBER])  # may compile
    start = time.process_time()
    texts_match([junk] * 5, ["7.25"] * 5, [NUMBER] * 5)
    assert time.process_time() - start < 60  # where the square takes many minutes


def test_the_kernel_is_loaded_only_when_it_pays(monkeypatch):
    monkeypatch.setattr(compare, "_compared", 0)
    monkeypatch.setattr(compare_kernel, "is_loaded", lambda: False)
    monkeypatch.setattr(compare, "LOAD_ABOVE", 10_000)
    assert not compare.pays_to_load(6_000)
    assert compare.pays_to_load(6_000)


def test_lengths_must_agree():
    with pytest.raises(UsageError, match="got 1, 2 and 1"):
        texts_match(["1"], ["1", "2"], [TOKENS])
