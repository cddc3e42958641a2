"""Finding the program in a reply."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowzoo.reward.code import score as code
from flowzoo.reward.code.score import LONGEST, extract_code
from tests.tables import read_tables

TABLES = read_tables(__file__)
ESCAPES = "print('" + "\\d" * 100 + "')"
TOO_LONG_OR_DEEP = (
    "def f(x): return x\n" * 2000,
    "print(" + "-" * 9000 + "1)",
    "print(" + "(" * 190 + "1" + ")" * 190 + ")",
)


def block(text: str, label: str = "python") -> str:
    return f"```{label}\n{text}\n```"


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        *TABLES["read"]["strict"],
        (ESCAPES, ESCAPES),
        *((reply, None) for reply in (*TABLES["unread"]["strict"], *TOO_LONG_OR_DEEP)),
    ],
)
def test_strict_reading(reply, program):
    assert extract_code(reply) == program


@pytest.mark.parametrize(
    ("reply", "program"),
    [*TABLES["read"]["lenient"], *((reply, None) for reply in TABLES["unread"]["lenient"])],
)
def test_lenient_reading_goes_on_where_strict_finds_nothing(reply, program):
    assert extract_code(reply) is None
    assert extract_code(reply, "lenient") == program


def test_a_program_has_a_bounded_size():
    assert extract_code(block("a" * LONGEST)) == "a" * LONGEST
    assert extract_code(block("a" * (LONGEST + 1))) is None
    assert extract_code("x" * 10**6 + "\n" + block("a = 1")) == "a = 1"


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize(
    "text",
    ["```python\n" * 10**5, "```\n" * 2 * 10**5, "`" * 10**6, "a,b" * 3 * 10**5,
     "x = " * 3 * 10**5, "<think>" * 10**5, "\x00\ud800```python\n\udfff\x00\n```",
     "def " * 3 * 10**5, " " * 10**6],
)  # fmt: skip
def test_hostile_texts_are_read_in_linear_time(text, monkeypatch):
    monkeypatch.setattr(code, "TAIL", len(text) + 1)  # or most of it would not be read at all
    for reading in ("strict", "lenient"):
        program = extract_code(text, reading)
        assert program is None or 0 < len(program) <= LONGEST


@given(st.lists(st.sampled_from(["```", "python", "\n", "a = 1", " ", "<think>", "</think>", "`"])))
def test_any_mixture_is_read(parts):
    text = "".join(parts)
    strict, lenient = extract_code(text), extract_code(text, "lenient")
    assert strict is None or (strict == lenient and strict in text)
