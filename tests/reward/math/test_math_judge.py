"""The fallback judge: what may reach it, its worker's handler, its guards and statuses."""

import json
import logging

import pytest

from flowzoo.errors import UsageError
from flowzoo.reward import MathOptions, score_batch
from flowzoo.reward.math import judge as math_judge
from flowzoo.reward.math.judge import is_light, judge
from flowzoo.reward.math.worker import check_antlr, setup
from flowzoo.sandbox.pool import worker_pool
from flowzoo.sandbox.pool.protocol import Result

HEAVY = [
    "2^{2^{2}}",
    "x^{x^x}",
    "9**9**9",
    "(-3)^{(-3)^{27}}",
    "a^b^c",
    "100!",
    "\\Gamma(3)",
    "\\binom{100}{50}",
    "\\sum_{n=1}^9 n",
    "\\int x dx",
    "\\lim_{x\\to0} x",
    "\\prod p",
    "2^{1000}",
    "10**1000",
    "1" * 16,
    "\\frac{d}{dx} x",
    "x" * 401,
    "&" * 64,
    "(" * 81,
    "__import__('os')",
    "x\x00y",
]
LIGHT = ["x^2-2<0", "|z| \\le 3/2", "e^{2x}+1", "x^{10} \\cdot y^{2}", "\\frac{a}{b}"]


@pytest.mark.parametrize("text", HEAVY)
def test_the_screen_keeps_heavy_text_out(text: str) -> None:
    assert not is_light(text)


@pytest.mark.parametrize("text", LIGHT)
def test_the_screen_lets_ordinary_answers_through(text: str) -> None:
    assert is_light(text)


def test_the_handler_decides_an_inequality(monkeypatch: pytest.MonkeyPatch) -> None:
    # A worker is a process of its own; here other tests of this process want their messages.
    monkeypatch.setattr(logging, "disable", lambda level: None)
    handle = setup()
    pair = {"gold": "1\\leq|z|\\leq 3", "answer": "z \\in [-3,-1] \\cup [1,3]"}
    assert handle(json.dumps(pair).encode()) == b"1"
    pair["answer"] = "z \\in [-3,-1] \\cup [1,4]"
    assert handle(json.dumps(pair).encode()) == b"0"


def test_antlr_versions() -> None:
    for version in ("4.9.3", "4.11.1", "4.13.2"):
        check_antlr(version)
    with pytest.raises(UsageError, match=r"installed: 4\.13\.1.*pip install"):
        check_antlr("4.13.1")
    with pytest.raises(UsageError, match="none"):
        check_antlr(None)


def test_open_pairs_reach_the_pool_and_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    math_judge._known.clear()
    pred, gold = "z \\in [-7,-1] \\cup [1,7]", "1\\leq z^2\\leq 49"
    without = MathOptions(judge="none")
    assert score_batch([pred], [gold], without).statuses == ["different"]
    assert score_batch([pred], [gold]).statuses == ["equal"]
    monkeypatch.setattr(math_judge, "_ask", lambda pairs, deadline: 1 / 0)
    assert score_batch([pred], [gold]).statuses == ["equal"]


def test_a_timeout_is_a_status_and_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    math_judge._known.clear()
    monkeypatch.setattr(math_judge, "is_light", lambda text: True)
    pair = ("(-3)^{(-3)^{(-3)^{27}}}", "3")
    assert judge([pair], 0.3) == ["timeout"]  # without a deadline it would not come back at all
    assert judge([("x>1", "x-1>0")], 60.0) != ["timeout"]
    monkeypatch.setattr(math_judge, "_ask", lambda pairs, deadline: 1 / 0)
    assert judge([pair], 0.3) == ["timeout"]
    math_judge._known.clear()


def test_guards_after_a_true(monkeypatch: pytest.MonkeyPatch) -> None:
    assert math_judge._passes("[1,2]", "1 <= |x| <= 2")
    assert not math_judge._passes("1,2,3", "1,2")
    assert not math_judge._passes("x^2+5=0", "x^2+1=0")


def test_a_true_of_the_worker_counts_only_past_the_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    class Agrees:
        def submit_batch(self, jobs: list[bytes], deadline: float) -> list[Result]:
            return [Result("ok", b"1")] * len(jobs)

    monkeypatch.setattr(worker_pool, "shared_pool", lambda *args, **kwargs: Agrees())
    monkeypatch.setattr(math_judge, "_known", {})
    pairs = [("[1,2]", "1 <= |x| <= 2"), ("1,2,3", "1,2"), ("x^2+5=0", "x^2+1=0")]
    assert judge(pairs, 1.0) == ["equal", "different", "different"]


def test_options_are_checked() -> None:
    with pytest.raises(UsageError, match="deadline"):
        MathOptions(deadline=2.0)
    with pytest.raises(UsageError, match="digits"):
        MathOptions(digits=0)
    with pytest.raises(UsageError, match="pool"):
        MathOptions(judge="pol")  # type: ignore[arg-type]
