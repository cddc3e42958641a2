"""Finding the program in a reply."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowzoo.reward.code import score as code
from flowzoo.reward.code.score import LONGEST, extract_code

DOCSTRING = '    """\n    ```python\n    f()\n    ```\n    """'


def block(text: str, label: str = "python") -> str:
    return f"```{label}\n{text}\n```"


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        (block("a = 1"), "a = 1"),
        (f"First\n{block('a = 1')}\nthen\n{block('b = 2')}\nDone.", "b = 2"),
        (block("a = 1", "py") + "\n" + block("x", "text"), "a = 1"),
        (block("a = 1", "Python3"), "a = 1"),
        (block("a = 1", ""), "a = 1"),
        (f"{block('a = 1')}\n{block('output', '')}", "a = 1"),
        (block("ls", "bash"), None),
        (block("  \n"), None),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''"),
        ("```text\n```python\na = 1\n```", "a = 1"),
        ("```python\na = 1\n```python\nb = 2\n```", "b = 2"),
        (f"<think>{block('a = 1')}</think>{block('b = 2')}", "b = 2"),
        (f"<think>{block('a = 1')}</think>none", None),
        (f"{block('a = 1')}<think>{block('b = 2')}", "a = 1"),
        ("inline ```python a = 1``` is no block", None),
        ("```python\r\na = 1\r\n```", "a = 1"),
        ("~~~python\na = 1\n# ```\n~~~", "a = 1\n# ```"),
        ("1. So:\n   ```python\n   if a:\n\n       b = 1\n   ```", "if a:\n\n    b = 1"),
        ("1. So:\n   - ```text```\n     ```python\n     a = 1\n     ```", "a = 1"),
        (block(f"def f():\n{DOCSTRING}\n    return 1"), f"def f():\n{DOCSTRING}\n    return 1"),
        ("def f(x):\n    return x", "def f(x):\n    return x"),
        (f"def f():\n{DOCSTRING}\n    return 1", f"def f():\n{DOCSTRING}\n    return 1"),
        ("# double\nprint(2 * int(input()))\n```", "# double\nprint(2 * int(input()))"),
        ("print('" + "\\d" * 100 + "')", "print('" + "\\d" * 100 + "')"),
        ("def f(x): return x\n" * 2000, None),
        ("print(" + "-" * 9000 + "1)", None),
        ("print(" + "(" * 190 + "1" + ")" * 190 + ")", None),
        ("", None),
    ],
)
def test_strict_reading(reply: str, program: str | None) -> None:
    assert extract_code(reply) == program


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        ("Here it is:\nimport sys\nprint(sys.stdin.read())", "import sys\nprint(sys.stdin.read())"),
        ("Sure.\nn = int(input())\nprint(n + 1)\n", "n = int(input())\nprint(n + 1)"),
        ("```python\ndef f(x):\n    return x", "def f(x):\n    return x"),
        ("```\ndef f(x):\n    return x", "def f(x):\n    return x"),
        (block("ls", "bash"), None),
        ("I do not know.", None),
        ("The answer is 4.", None),
    ],
)
def test_lenient_reading_goes_on_where_strict_finds_nothing(
    reply: str, program: str | None
) -> None:
    assert extract_code(reply) is None
    assert extract_code(reply, "lenient") == program


def test_a_program_has_a_bounded_size() -> None:
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
def test_hostile_texts_are_read_in_linear_time(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "TAIL", len(text) + 1)  # or most of it would not be read at all
    for reading in ("strict", "lenient"):
        program = extract_code(text, reading)
        assert program is None or 0 < len(program) <= LONGEST


@given(st.lists(st.sampled_from(["```", "python", "\n", "a = 1", " ", "<think>", "</think>", "`"])))
def test_any_mixture_is_read(parts: list[str]) -> None:
    text = "".join(parts)
    strict, lenient = extract_code(text), extract_code(text, "lenient")
    assert strict is None or (strict == lenient and strict in text)
