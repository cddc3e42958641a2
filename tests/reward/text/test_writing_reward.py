"""The structure reward by its formula, transition words, and the published hole."""

import random

import pytest

from flowzoo.reward.text.writing import (
    REQUIREMENTS,
    TRANSITIONS,
    ScoreBand,
    structure,
    transition_score,
)


def text_of(count, start=0, stem="w"):
    """Distinct words of four characters, so that lengths are easy to compute."""
    return " ".join(f"{stem}{n:03}" for n in range(start, start + count))


def test_a_band_has_ramps_and_hard_ends():
    band = ScoreBand(1.1, 1.6, 3.2, 5.0)
    assert [band.mark(v) for v in (1.0, 5.1)] == [None, None]
    assert [band.mark(v) for v in (1.1, 1.6, 2.0, 3.2, 5.0)] == [0.0, 1.0, 1.0, 1.0, 0.0]
    assert band.mark(1.35) == pytest.approx(0.5)
    assert band.mark(4.1) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("first", "second", "marks"),
    [
        # lengths fail
        ("", "", (0, 0, 0, 0)),
        (text_of(7), text_of(20), (0, 0, 0, 0)),
        (text_of(8), text_of(257), (0, 0, 0, 0)),
        # n words are 5n - 1 characters: the ratio of 80 to 8 words is over 5
        (text_of(8), text_of(80), (0.5, 0, 0, 0)),
        (text_of(20), text_of(20), (0.5, 0, 0, 0)),
        # a ratio of about 2, but no more distinct words than before
        (text_of(20), text_of(20) + " " + text_of(20), (0.5, 1, 0, 0)),
        # all of it: twice the words, half of them shared, no transition
        (text_of(20), text_of(40), (0.5, 1, 0.5, 0.6)),
        # the same with other words: nothing shared
        (text_of(20), text_of(40, stem="v"), (0.5, 1, 0.5, 0)),
        # with transitions of two categories
        (text_of(20), text_of(40) + " however because", (0.5, 1, 0.5, 0.4 * 0.45 + 0.6)),
    ],
)
def test_tldr_levels_are_gates(first, second, marks):
    levels = structure(first, second, "tldr")
    assert list(levels) == ["lengths", "ratio", "unique", "style"]
    assert tuple(levels.values()) == pytest.approx(marks)


def test_expansion_asks_for_other_shapes():
    first, second = text_of(130), text_of(190)
    assert structure(first, second, "tldr")["ratio"] == pytest.approx((1.462 - 1.1) / 0.5, abs=0.01)
    levels = structure(first, second, "expansion")
    assert levels["ratio"] == 1.0
    # Distinct words 190 / 130 = 1.46 lie on the ramp from 1.3 to 1.7.
    assert levels["unique"] == pytest.approx(0.5 * (1.7 - 190 / 130) / 0.4)
    assert levels["style"] == pytest.approx(0.6)
    # The first text's transition words count too.
    assert structure(first + " however", second, "expansion")["style"] == pytest.approx(0.76)
    assert structure(text_of(127), second, "expansion")["lengths"] == 0.0
    assert REQUIREMENTS["expansion"].jaccard == 0.23


def test_transitions_are_counted_by_category():
    assert len(TRANSITIONS) == 12
    assert transition_score("Nothing.") == 0.0
    assert transition_score("However, it rained. But it stopped.") == pytest.approx(0.4)
    assert transition_score("However, FOR\nexample, it rained.") == pytest.approx(0.45)
    everything = " ".join(group[0] for group in TRANSITIONS.values())
    assert transition_score(everything) == pytest.approx(0.4 + 11 * 0.05)


def test_only_the_published_reward_finds_words_inside_words():
    assert transition_score("some also-ran butter") == pytest.approx(0.4)  # also
    assert transition_score("some butter", whole_words=False) == pytest.approx(0.45)  # so, but
    assert transition_score("some butter") == 0.0


def test_word_lists_earn_most_of_the_published_reward():
    """The hole that `grounded` closes: the source plays no part."""
    rng = random.Random(0)
    stock = [f"{a}{b}" for a in "bdfgklmnprst" for b in ("ab", "ek", "id", "om", "ul")]
    first = " ".join(rng.sample(stock, 15))
    second = f"{first} {' '.join(rng.sample(stock, 40))} however because finally"
    assert sum(structure(first, second, "tldr", whole_words=False).values()) > 2.27
