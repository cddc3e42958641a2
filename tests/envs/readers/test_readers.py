"""The strict readers on any text: they never raise, and long replies cost little."""

import time
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowzoo.envs.readers import published, read_choice, read_plan, read_tests, read_verdict
from flowzoo.reward.code.score import bare_program

PIECES = (
    "Candidate ", "candidate 2 ", "1", "2 and 3", "is right", "is the correct one", "is wrong",
    "not ", "or ", ". ", "\n", "?", "maybe ", "\\boxed{", "3}", "Correct", "Incorrect. ",
    "The answer is ",
    "STRATEGY 1: ", "- ", "**", "1. ", "text", "```", "```json\n", "[", "]", "{'input': [1], ",
    "'output': 2}", "def f(x):\n", "    return x\n", "print(", ")", "the first one ", "⟦1⟧", "\x00",
    "\ud800", "<think>", "</think>", "²",
)  # fmt: skip
READERS = (
    partial(read_choice, count=3),
    read_verdict,
    partial(read_plan, word="STRATEGY", most=3),
    partial(read_plan, word="SUBTASK", most=3),
    partial(read_tests, entry="f"),
    partial(read_tests, entry=None),
    bare_program,
)
PUBLISHED = (
    published.read_verdict,
    partial(published.read_choice, count=3),
    partial(published.read_plan, word="STRATEGY", most=3),
    published.read_answer,
    published.read_program,
)
CPU_S = 5.0
"""For one reply; what is linear takes milliseconds."""


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_any_mixture_is_read_or_not_and_never_raises(text):
    assert read_choice(text, 3) in (None, 1, 2, 3)
    assert read_verdict(text) in (None, True, False)
    for reader in READERS[2:]:
        results = reader(text)
        assert results is None or len(results) > 0
    verdict, choice, plan, answer, program = (reader(text) for reader in PUBLISHED)
    assert verdict in (None, True, False)
    assert choice in (None, 1, 2, 3)
    assert 1 <= len(plan) <= 3
    assert {type(answer), type(program)} <= {str, type(None)}


@pytest.mark.parametrize(
    "piece", [*PIECES, "a", " ", "`", "candidate 1, ", "1. a\n", "x = 1\n", "("]
)
def test_long_replies_cost_little(piece):
    for start in ("", "Candidate 1 ", "STRATEGY 1: ", "print(1)\n", "[", "```python\n"):
        for size in (9_900, 50_000):
            text = start + piece * (size // len(piece))
            for reader in (*READERS, *PUBLISHED):
                before = time.process_time()
                reader(text)
                assert time.process_time() - before < CPU_S


@pytest.mark.parametrize("count", [1, 2, 3, 12])
def test_choices_are_within_the_number_of_candidates(count):
    for number in range(15):
        expected = number if 1 <= number <= count else None
        for form in ("{}", "Candidate {} is right.", "\\boxed{{{}}}", "The right candidate is {}."):
            assert read_choice(form.format(number), count) == expected


def test_thoughts_are_not_read():
    assert read_choice("<think>Candidate 1 is right.</think>", 3) is None
    assert read_choice("<think>Candidate 1 is right.</think>Candidate 2 is right.", 3) == 2
    assert read_verdict("<think>Correct</think>Incorrect") is False
    assert read_verdict("Let me see. <think>Correct") is None
    assert read_plan("<think>STRATEGY 1: a</think>", "STRATEGY", 3) is None
    assert bare_program("<think>def f(x):\n    return x") is None
