"""Golds of MATH and GSM8K against themselves, and against themselves with one character changed."""

import random
import re

from flowzoo.reward import MathOptions, score_batch
from tests.tables import shared_rows

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
