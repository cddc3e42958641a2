"""Waits that hang are named, given up, and leave what they should: `hung.py` plants them."""

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flowzoo import waits

HUNG = Path(__file__).with_name("hung.py")
CASES = {
    "engine": ("policy 'pocket:xs'", r"LateError: policy .* has not answered in 3 s: what was sav"),
    "endpoint": ("policy 'openai:model@", r"LateError: policy .* has not answered in 3 s"),
    "judge": ("the judge has run for", r"LateError: the judge has not ended in 3 s"),
    "function": ("--reward m:f has run for", r"LateError: --reward m:f has not ended in 3 s"),
    "grader": ("from worker pool 'math'", r"value=b'ab'"),
    "sandbox": ("from a program in the sandbox", r"\('AC', {'retried': True}\)"),
    "mcp": ("from the MCP server", r"McpServerError: the MCP server .* did not start"),
    "rank": ("from the other ranks", r"RankError: another rank has gone"),
    "lock": ("from the lock of ", r"SaveError: .*answers.sqlite cannot be .*: database is locked"),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_wait_that_hangs_is_named_and_given_up(kind, tmp_path):
    if kind in ("engine", "rank"):
        pytest.importorskip("torch", reason="needs flowzoo[train]")
    if kind == "mcp":
        pytest.importorskip("mcp", reason="needs flowzoo[mcp]")
    done = subprocess.run(
        [sys.executable, str(HUNG), kind, str(tmp_path)],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    named, said = CASES[kind]
    lines = [line for line in done.stderr.splitlines() if named in line]
    assert lines, done.stderr
    assert len(lines) <= 10, "twice, four times ... as long"
    assert re.search(said, done.stdout.splitlines()[-1]), done.stdout + done.stderr


def test_the_line_comes_at_ten_times_the_usual_time(monkeypatch, caplog):
    monkeypatch.setattr(waits, "NAMED_AFTER_S", 0.05)
    kind = waits.WaitKind("it is told")
    for _ in range(5):
        kind.wait("one").__enter__().end()
    kind.answered[""].extend([0.1] * 10)
    assert kind.usual_s() == pytest.approx(0.1)
    wait = kind.begin("another", limit_s=50)
    wait.began -= 0.9
    kind.tell([wait])
    assert not caplog.messages
    wait.began -= 0.2
    kind.tell([wait])
    kind.tell([wait])
    wait.end(answered=False)
    (said,) = caplog.messages
    assert said == "no answer for 1 s from another (usually 0.1 s); after 50 s it is told"


def test_who_answers_others_meanwhile_is_not_late():
    kind = waits.WaitKind("", is_shared=True)
    wait = kind.begin("policy", "policy")
    wait.began -= 100
    assert wait.seconds >= 100
    kind.begin("policy", "policy").end()
    assert wait.seconds < 50
    wait.end(answered=False)


def test_limits_follow_the_usual_time_and_the_option(monkeypatch):
    kind = waits.WaitKind("")
    assert kind.limit_s() == waits.FIRST_LIMIT_S
    kind.answered["a"].append(100.0)
    assert kind.limit_s("a") == 10_000
    assert kind.limit_s() == waits.FIRST_LIMIT_S
    monkeypatch.setattr(waits.LIMITS, "wait_s", 7.0)
    assert kind.limit_s("a") == 7


def test_a_function_that_ends_in_time_is_left_alone(monkeypatch):
    monkeypatch.setattr(waits.LIMITS, "function_s", 0.5)
    for _ in range(20):
        with waits.function_call("short"):
            pass
    time.sleep(1.5)
    assert not waits._calls


def test_a_sleep_in_the_main_thread_is_ended_though_its_exceptions_are_caught(monkeypatch):
    monkeypatch.setattr(waits.LIMITS, "function_s", 0.3)
    began = time.monotonic()

    def stubborn() -> None:
        try:
            time.sleep(60)
        except Exception:
            time.sleep(60)

    late = pytest.raises(waits.LateError, match=r"outer has not ended in 0.3 s")
    with late, waits.function_call("outer"):
        stubborn()
    assert time.monotonic() - began < 30
    assert threading.current_thread() is threading.main_thread()
