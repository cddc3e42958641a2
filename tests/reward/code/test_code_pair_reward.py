"""The texts of a code pair, read without running them."""

import warnings

import pytest

from flowzoo.reward.code.pair import (
    cooperation,
    find_function,
    is_wrapper,
    join_programs,
    may_cooperate,
    pair_reward,
    variants,
)
from flowzoo.reward.code.score import parse_code
from tests.tables import read_tables

TABLES = read_tables(__file__, "pair_reward")

HELPER = "def aux(x):\n    return x + 3"


def main(*lines):
    return "\n".join(["def f(x):", *(f"    {line}" for line in lines)])


@pytest.mark.parametrize(("code", "definition"), [*TABLES["definitions"], (None, False)])
def test_a_definition_has_to_return_something(code, definition):
    assert (find_function(parse_code(code), "aux") is not None) == definition


def test_parts_without_cooperation():
    assert pair_reward(HELPER, main("return 1"), "f", 0.25) == {
        "helper": 0.4, "main": 0.6, "syntax": 0.5, "tests": 0.25,
    }  # fmt: skip
    assert pair_reward("def aux(x", main("return 1"), "f", 0.0) == {
        "helper": 0.0, "main": 0.6, "syntax": 0.0, "tests": 0.0,
    }  # fmt: skip
    assert sum(pair_reward(None, None, "f", 0.0).values()) == 0.0


VALUES = ["5", "6"]  # values that `aux` alone returns


@pytest.mark.parametrize("lines", TABLES["mentions"])
def test_what_only_mentions_aux_or_has_its_own_cannot_cooperate(lines):
    assert not may_cooperate(HELPER, main(*lines.split("\n")), "f")


def test_what_calls_the_helpers_aux_may_cooperate():
    usual = ["import sys", "from math import floor", "y = floor(aux(x))", "return y.real"]
    assert may_cooperate(HELPER, main(*usual), "f")
    assert may_cooperate(HELPER, main("return aux(x) * 4"), "f")
    assert not may_cooperate("x = 1", main("return aux(x) * 4"), "f")
    assert not may_cooperate(HELPER, "f = lambda x: aux(x)", "f")
    assert not may_cooperate(HELPER, HELPER + "\n" + main("return aux(x)"), "f")


@pytest.mark.parametrize(("lines", "thin"), TABLES["wrappers"])
def test_wrappers(lines, thin):
    function = find_function(parse_code(main(*lines.split("\n"))), "f")
    assert is_wrapper(function) == thin


def test_cooperation_is_read_from_what_the_variants_do():
    code = main("return aux(x) * 4")
    good = {"calls": 0.5, "depth": 1.0, "ignored": 0.0}
    none = {"calls": 0.0, "depth": 0.0, "ignored": 0.0}
    passes, fails = [True, True], [False, False]
    assert cooperation(code, "f", passes, fails, [["WA", "WA"]], fails, VALUES) == good
    # With an aux that raises it still passes: it is not called, or its failure is swallowed.
    assert cooperation(code, "f", passes, passes, [["WA", "WA"]], fails, VALUES) == none
    # It is called, but another result changes no output, or is only an error.
    ignored = {"calls": 0.5, "depth": 0.0, "ignored": -0.5}
    assert cooperation(code, "f", passes, fails, [["AC", "AC"]], fails, VALUES) == ignored
    assert cooperation(code, "f", passes, fails, [["RE", "RE"]], fails, VALUES) == ignored
    # aux alone does it all, or main is a wrapper by its text.
    wrapper = {"calls": 0.5, "depth": 0.0, "ignored": 0.0}
    assert cooperation(code, "f", passes, fails, [["WA", "WA"]], passes, VALUES) == wrapper
    thin = main("return aux(x)")
    assert cooperation(thin, "f", passes, fails, [["WA", "WA"]], fails, VALUES) == wrapper
    # Only tests that the pair passes count.
    assert (
        cooperation(code, "f", [True, False], [True, False], [["AC", "WA"]], fails, VALUES) == none
    )
    # aux returns the same whatever it is given: a convention, no help. One value says nothing.
    assert cooperation(code, "f", passes, fails, [["WA", "WA"]], fails, ["0", "0"]) == wrapper
    assert cooperation(code, "f", passes, fails, [["WA", "WA"]], fails, ["0", ""]) == good


def test_programs_are_put_together():
    assert join_programs(HELPER, "y = 1").index("aux") < join_programs(HELPER, "y = 1").index(
        "y = 1"
    )
    assert join_programs("def aux(x", "y = 1") == join_programs(None, "y = 1") == "y = 1\n"
    for variant in variants(HELPER, main("return aux(x) * 4")):
        assert parse_code(variant) is not None


@pytest.mark.parametrize(
    "code",
    [
        "\x00", "\ud800", "(" * 60_000, "-" * 60_000 + "1", "a" + ".b" * 30_000, "9" * 60_000,
        "x = '\\d'", "if 1:\n" * 3_000,
    ],
    ids=["NUL", "surrogate", "brackets", "minus", "dots", "digits", "escape", "indent"],
)  # fmt: skip
def test_hostile_code_is_read_or_not_but_never_raises(code):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pair_reward(code, code, "f", 0.0)
        may_cooperate(code, code, "f")
