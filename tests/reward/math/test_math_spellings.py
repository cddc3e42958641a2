"""Agreement with `spellings.txt`: right and wrong answers by kind of spelling.

`##` names a kind, `=` a gold, `+` an answer that is right and `-` one that is not; answers stand in
a box, full replies (behind `!`, line ends as `⏎`) as they are. The golds of a kind take turns: the
second of every two was not looked at while the grader was mended.
"""

from collections import defaultdict
from pathlib import Path

import pytest

from flowzoo.reward import score_batch

Row = tuple[str, str, str, bool]


def rows(turn: int) -> list[Row]:
    """Kind, gold, reply and label of the golds whose turn it is."""
    kind, gold, cases = "", "", []
    golds: dict[str, int] = defaultdict(int)
    text = Path(__file__).with_name("spellings.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        mark, _, content = line.partition(" ")
        if mark == "##":
            kind = content
        elif mark == "=":
            gold, golds[kind] = content, golds[kind] + 1
        elif golds[kind] % 2 == turn:
            is_reply = content.startswith("!")
            reply = content[1:].replace("⏎", "\n") if is_reply else rf"So $\boxed{{{content}}}$."
            cases.append((kind, gold, reply, mark == "+"))
    return cases


@pytest.mark.parametrize(("turn", "least"), [(1, 0.99), (0, 0.98)])
def test_agreement(turn, least):
    cases = rows(turn)
    assert len(cases) > 250
    scores = score_batch([row[2] for row in cases], [row[1] for row in cases]).scores
    wrong = [row for row, score in zip(cases, scores, strict=True) if bool(score) != row[3]]
    assert [row for row in wrong if not row[3]] == []
    assert len(wrong) <= (1 - least) * len(cases), wrong
