"""SQuAD normalization, exact match and F1, on values computed by hand."""

import pytest

from flowzoo.reward.text.qa import exact_match, f1, normalize


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Eiffel Tower.", "eiffel tower"),
        ("An apple, a pear", "apple pear"),
        ("U.S.", "us"),
        ("theatre", "theatre"),
        ("the", ""),
        ("Été\n1999", "été 1999"),
    ],
)
def test_normalize(text, normal):
    assert normalize(text) == normal


def test_exact_match_takes_any_reference_and_never_an_empty_answer():
    assert exact_match("the Beatles!", ["Wings", "Beatles"])
    assert not exact_match("Beatles and Wings", ["Wings", "Beatles"])
    assert not exact_match("the", ["a"])
    assert not exact_match("", [""])


def test_f1_is_the_best_over_the_references():
    assert f1("the red house", ["red house"]) == 1.0
    assert f1("red house", ["red car", "blue car"]) == pytest.approx(0.5)
    # Two of three words said are right, and two of four are found: 2 * 2 / (3 + 4).
    assert f1("big red house", ["red house by sea"]) == pytest.approx(4 / 7)
    assert f1("red red", ["red"]) == pytest.approx(2 / 3)
    assert f1("", ["red"]) == 0.0
