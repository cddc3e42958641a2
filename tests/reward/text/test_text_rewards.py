"""Short answers by SQuAD's rules; the structure reward and its published hole; the grounded reward.

Cheating writers are set against honest ones, attack by attack.
"""

import random
from itertools import cycle, islice
from statistics import mean

import pytest

from flowzoo.envs.tasks.writing import draw
from flowzoo.reward.text.grounding import grounding, pair_grounding, read_source
from flowzoo.reward.text.qa import exact_match, f1, normalize
from flowzoo.reward.text.writing import (
    FUNCTION_WORDS,
    REQUIREMENTS,
    TRANSITIONS,
    ScoreBand,
    sentences,
    stem,
    structure,
    transition_score,
    words,
)

# Words of the two texts of an attack, as a pair of full structure marks has them.
LENGTHS = {"tldr": (28, 64), "expansion": (145, 215)}
LINKS = ("However,", "because", "therefore", "for example", "finally", "although")
ENGLISH = (
    "time people water house music river letter garden stone window summer village engine market "
    "bridge forest doctor paper table mountain light story winter island"
)


def reward(first, second, source, form):
    share, _ = pair_grounding(first, second, read_source(source), form)
    return sum(structure(first, second, form).values()) * share


def nonsense(count, rng):
    return [
        "".join(rng.choice("bdfgklmnprst") + rng.choice("aeiou") for _ in range(rng.randint(2, 3)))
        for _ in range(count)
    ]


def linked(items, rng):
    """Transition words strewn in."""
    pieces = []
    for index, item in enumerate(items):
        pieces += [rng.choice(LINKS), item] if index % 7 == 3 else [item]
    return pieces


def padded(items, padding, rng):
    return [word for item in items for word in (rng.choice(padding), item)]


def replaced(items, step, rng):
    """Every `step`-th word is nonsense."""
    return [
        nonsense(1, rng)[0] if index % step == step - 1 else item
        for index, item in enumerate(items)
    ]


def exchanged(items, size):
    """The last word of every `size` comes first."""
    groups = [items[start : start + size] for start in range(0, len(items), size)]
    return [word for group in groups for word in (group[-1], *group[:-1])]


def attacks(texts, form, rng):
    """Name -> (first, second): word sequences, repeated and cut to the lengths that pay."""
    tokens = texts.source.split()
    parts = sentences(texts.source)
    meant = [word for word in tokens if word.lower().strip(".,") not in FUNCTION_WORDS]
    mixed = rng.sample(tokens, len(tokens))
    english = [rng.choice(words(ENGLISH)) for _ in range(250)]
    streams = {
        "nonsense": nonsense(250, rng),
        "a list of English words": english,
        "a list with transition words": linked(english, rng),
        "the source": tokens,
        "the source from its end": tokens[len(tokens) // 2 :] + tokens,
        "the source with transition words": linked(tokens, rng),
        "its sentences in another order": " ".join(rng.sample(parts, len(parts))).split(),
        "the source, every 10th word nonsense": replaced(tokens, 10, rng),
        "the source, every 5th word nonsense": replaced(tokens, 5, rng),
        "the source, every 4th word nonsense": replaced(tokens, 4, rng),
        "the source, every 3rd word nonsense": replaced(tokens, 3, rng),
        "every 6th word left out": [t for i, t in enumerate(tokens) if i % 6 != 5],
        "every 4th word left out": [t for i, t in enumerate(tokens) if i % 4 != 3],
        "every 2nd word left out": tokens[::2],
        "its words exchanged two by two": exchanged(tokens, 2),
        "its words exchanged three by three": exchanged(tokens, 3),
        "its words shuffled": mixed,
        "its words sorted": sorted(tokens),
        "its words backwards": tokens[::-1],
        "its content words": meant,
        "its content words with articles": padded(meant, ["the"], rng),
        "its content words with common words": padded(meant, words("the a of to in was"), rng),
        "one sentence again and again": parts[0].split(),
        "a good sentence again and again": sentences(texts.first)[0].split(),
        "one word again and again": [meant[3]],
        "letters": list("ab"),
    }  # fmt: skip
    for name, stream in streams.items():
        first, second = (" ".join(islice(cycle(stream), size)) for size in LENGTHS[form])
        yield name, (first, second)
    yield "nothing", ("", "")
    yield "blanks", (" " * 90, "\n" * 200)
    yield "an honest text beside nonsense", (texts.first, " ".join(nonsense(200, rng)))
    yield "an honest text beside a copy", (texts.first, " ".join((tokens * 3)[: LENGTHS[form][1]]))
    yield "the first text twice", (texts.first, f"{texts.first} {texts.first}")
    yield "the same text by both", (texts.first, texts.first)
    yield "the same text by both, the second with a word more", (texts.second, f"So {texts.second}")
    size = LENGTHS[form][1]
    yield (
        "a copy behind the first text",
        (texts.first, " ".join([*texts.first.split(), *tokens][:size])),
    )


@pytest.mark.usual(1)
@pytest.mark.parametrize("form", ["tldr", "expansion"])
def test_every_attack_earns_less_than_a_quarter_of_an_honest_pair(form):
    rng = random.Random(1)
    honest, earned = [], {}
    for _ in range(12):
        texts = draw(form, rng)
        honest.append(reward(texts.first, texts.second, texts.source, form))
        for name, pair in attacks(texts, form, rng):
            earned.setdefault(name, []).append(reward(*pair, texts.source, form))
    assert mean(honest) > 2.5
    assert min(honest) > 1.6
    for name, values in earned.items():
        # On the worst instance too, not only on average.
        assert max(values) < 0.25 * mean(honest), name


def shuffled_sentences(texts, form, rng):
    """Subject and sentence stay; only grammar and order are broken."""
    stream = []
    for part in sentences(texts.source):
        tokens = part.split()
        stream += rng.sample(tokens, len(tokens))
    return [" ".join(islice(cycle(stream), size)) for size in LENGTHS[form]]


def half_a_good_text(texts, form, rng):
    good, tokens = texts.second.split(), texts.source.split()
    rest = [rng.choice(tokens) for _ in range(len(good) // 2)]
    return texts.first, " ".join([*good[: len(good) // 2], *rest])


@pytest.mark.parametrize(("cheat", "seed"), [(shuffled_sentences, 2), (half_a_good_text, 5)])
@pytest.mark.parametrize("form", ["tldr", "expansion"])
def test_what_is_good_in_part_does_not_pay_on_average(form, cheat, seed):
    rng = random.Random(seed)
    honest, earned = [], []
    for _ in range(60):
        texts = draw(form, rng)
        honest.append(reward(texts.first, texts.second, texts.source, form))
        earned.append(reward(*cheat(texts, form, rng), texts.source, form))
    assert mean(earned) < 0.25 * mean(honest)


def test_a_summary_may_open_with_the_shorter_one():
    first = "My cat ran off in Rome, and a baker brought it back."
    second = f"{first} We had looked for two days. He had fed it with fish from his own shop."
    source = read_source(f"{first} {second}")
    assert pair_grounding(first, second, source, "tldr")[1]["apart"] == 1.0
    assert pair_grounding(first, first, source, "tldr")[1]["apart"] == 0.0
    assert pair_grounding(first, "", source, "tldr") == (
        0.0, {"grounding_0": pytest.approx(0.0, abs=1.0), "grounding_1": 0.0, "apart": 0.0},
    )  # fmt: skip


def test_a_good_text_about_another_source_earns_little():
    rng = random.Random(3)
    honest, earned = [], []
    for _ in range(60):
        text, other = draw("tldr", rng), draw("tldr", rng)
        if (
            text.source.split()[:2] == other.source.split()[:2]
        ):  # the same frame tells the same story
            continue
        honest.append(reward(text.first, text.second, text.source, "tldr"))
        earned.append(reward(other.first, other.second, text.source, "tldr"))
    assert len(honest) > 20
    assert max(earned) < 0.25 * mean(honest)


def test_each_check_answers_for_its_own_attack():
    rng = random.Random(4)
    texts = draw("tldr", rng)
    source = read_source(texts.source)
    tokens = texts.source.split()
    assert grounding(texts.source, source, "tldr")["own_words"] == 0.0
    assert grounding(" ".join(nonsense(30, rng)), source, "tldr")["precision"] == 0.0
    assert grounding(" ".join(tokens[::-1]), source, "tldr")["order"] < 0.2
    assert grounding(" ".join(tokens[:6] * 5), source, "tldr")["variety"] == 0.0
    assert grounding("the the of of the a an the my", source, "tldr") == {"grounding": 0.0}
    shuffled = grounding(" ".join(rng.sample(tokens, len(tokens))), source, "tldr")
    assert shuffled["relations"] < 0.5
    broken = "I took the of my and to at was nephew with is a had castle into he the"
    assert grounding(broken, source, "tldr")["grammar"] == 0.0
    good = grounding(texts.second, source, "tldr")
    assert set(good) == {
        "precision", "order", "relations", "own_words", "variety", "function_words", "grammar",
        "grounding",
    }  # fmt: skip
    assert all(0 <= value <= 1 for value in good.values())


@pytest.mark.parametrize("text", ["", "?", "\x00", "\ud800 \udfff x", "9" * 100_000, "a. " * 5_000])
def test_hostile_texts_are_scored(text):
    scores = grounding(text, read_source("A short source about seals."), "tldr")
    assert 0.0 <= scores["grounding"] <= 1.0


def test_words_sentences_and_stems():
    assert words("It's 3 o’clock -- naïve_x!") == ["it's", "3", "o’clock", "naïve", "x"]
    assert sentences("One. Two! Three?\nFour") == ["One.", "Two!", "Three?", "Four"]
    assert [stem(w) for w in ("walking", "walked", "walks", "walk", "sister's")] == [
        "walk", "walk", "walk", "walk", "sister",
    ]  # fmt: skip


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
