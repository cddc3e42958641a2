"""The compiled path gives the verdicts of the Python path, and is taken once that pays."""

import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowzoo.reward.math.score as scoring
from flowzoo.reward import MathOptions, score_batch
from flowzoo.reward.math import kernel
from flowzoo.reward.math.kernel import judge_plain, plain_gold

pytest.importorskip("numba")

BOXES = st.sampled_from([
    "\\boxed{%s}", "\\boxed{-%s}", "\\boxed{%s.50}", "\\boxed{1,%s}", "\\boxed{%s", "\\fbox{%s}",
    "\\boxed{%s}\\%%", "\\boxed{ %s}", "boxed{%s}", "\\boxed{.%s}", "\\boxed{%s.}", "%s",
    "\\boxed{}%s", "\\boxed{%s} and \\boxed{3}", "\\boxed{%s} \\boxed", "\\boxed{00%s.0}",
    "\\boxed{%se2}",
])  # fmt: skip
PIECES = st.tuples(BOXES, st.sampled_from(["3", "5", "12", "50", "123456789012345"])).map(
    lambda pair: pair[0] % pair[1]
)
REPLIES = st.lists(
    PIECES | st.sampled_from([" ", "\n", ". ", "z" * 90, "q" * 260, "é"]), max_size=8
)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(REPLIES.map("".join), st.sampled_from(["3", "5", "0.5", "-3", "12.50", "x"])),
        min_size=1,
        max_size=40,
    )
)
def test_both_paths_give_the_same_verdicts(rows):
    preds, golds = [pred for pred, _ in rows], [gold for _, gold in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "BATCH_ABOVE", 1)
        for read in ("auto", "strict", "lenient"):
            options = MathOptions(read=read, judge="none")  # type: ignore[arg-type]
            patch.setattr(scoring, "pays_to_load", lambda rows: False)
            plain = score_batch(preds, golds, options).statuses
            patch.setattr(scoring, "pays_to_load", lambda rows: True)
            statuses = scoring.plain_statuses(preds, golds, options)
            assert {idx: plain[idx] for idx in statuses} == statuses
            assert score_batch(preds, golds, options).statuses == plain


def test_the_kernel_decides_the_plain_case():
    rows = [
        ("so \\boxed{42}", "42"), ("so \\boxed{-42.50}.", "-42.5"), ("so \\boxed{7}", "8"),
        ("so \\boxed{5}", "0.5"), ("so \\boxed{-4.2}", "-42"),
    ]  # fmt: skip
    golds = [plain_gold(gold) for _, gold in rows]
    assert judge_plain([pred for pred, _ in rows], golds) == [2, 2, 1, 1, 1]  # type: ignore[arg-type]
    assert judge_plain(["no box", "\\boxed{x}"], [(1, 0), (1, 0)]) == [0, 0]


def test_golds_of_the_kernel():
    assert plain_gold("1.50") == (15, 1)
    assert plain_gold("-007") == (-7, 0)
    for gold in ("1,000", "1/2", "5 cm", "", "1" * 15, "+5", "\u0664"):
        assert plain_gold(gold) is None


@pytest.mark.parametrize("rows", [64, 128, 1_536])
def test_batches_take_the_kernel_once_it_pays_with_the_same_verdicts(monkeypatch, rows):
    rng = random.Random(0)
    preds = [f"{'work ' * 50}\\boxed{{{rng.randrange(9)}}}" for _ in range(rows)]
    golds = ["4"] * rows
    expected = [float("{4}" in pred) for pred in preds]
    calls: list[int] = []
    whole = scoring.judge_plain
    monkeypatch.setattr(
        scoring,
        "judge_plain",
        lambda texts, expected: calls.append(len(texts)) or whole(texts, expected),
    )
    loaded: list[bool] = []
    monkeypatch.setattr(kernel, "is_loaded", lambda: bool(loaded))
    monkeypatch.setattr(kernel, "_scored", 0)
    monkeypatch.setattr(kernel, "LOAD_ABOVE", 2 * rows)
    assert score_batch(preds, golds).scores == expected
    assert calls == []
    assert score_batch(preds, golds).scores == expected
    loaded.append(True)
    assert score_batch(preds, golds).scores == expected
    assert score_batch(preds[:63], golds[:63]).scores == expected[:63]
    assert calls == [rows, rows]


def test_one_batch_loads_nothing():
    code = (
        "import sys; from flowzoo.reward import score_batch; "
        "score_batch(['so \\\\boxed{4}'] * 4_096, ['4'] * 4_096); print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
