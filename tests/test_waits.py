"""Waits that hang are named, given up, and leave what they should: `hung.py` plants them."""

import asyncio
import json
import math
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flowzoo import waits
from flowzoo.agents import PolicyMap, Request
from flowzoo.agents.judge import FunctionJudge
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.baselines.backends.ray.worker import AnsweringActor
from flowzoo.baselines.settings.hooks import (
    AdvantageFunction,
    Callback,
    LossFunction,
    RewardFunction,
    StepControl,
)
from flowzoo.envs import Ask, Grade, GradeResult, Judge, Problem, Workflow
from flowzoo.envs.api.registry import make_workflow
from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.episode.recording import record
from flowzoo.envs.script import Reply, UseTool
from flowzoo.envs.tasks import make_task
from flowzoo.envs.tasks.math import MathTask
from flowzoo.envs.tasks.task import get_problem
from flowzoo.envs.tools import ToolCall
from flowzoo.envs.workflows.single import Single
from flowzoo.errors import FlowzooError
from flowzoo.functions import FunctionSetting
from tests.envs.playing import play_experts
from tests.hooked import hook
from tests.policies import Replies

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


# -- Code of the user that raises what is no error: nothing ends as if all were done ---------------


class StopError(BaseException):
    """An exception of the user's own that is no `Exception`."""


RAISED: dict[str, BaseException] = {}
ENDS = [SystemExit(0), SystemExit("text"), StopError("own"), asyncio.CancelledError()]


def end(*given: Any) -> Any:
    """The user's code."""
    raise RAISED["it"]


class Endless(Single):
    """A script, a parser and an `__init__` of the user's."""

    def play(self, problem: Problem) -> Any:
        end()
        yield


class Parsing(Single):
    def play(self, problem: Problem) -> Any:
        yield Ask("generator_0", [{"role": "user", "content": "?"}], parse=end)


class Making(Single):
    def __post_init__(self) -> None:
        end()


@dataclass(frozen=True)
class EndingTask(MathTask):
    """A task of the user's; also a source of tools."""

    def problem(self, index: int, split: str = "train") -> Problem:
        return end() if index else super().problem(index, split)

    def grade_batch(
        self, problems: Sequence[Problem], answers: Sequence[str | None]
    ) -> list[GradeResult]:
        return end()

    def use(self, calls: Sequence[ToolCall]) -> Sequence[str]:
        return end()


class Unmade(MathTask):
    def __init__(self) -> None:
        end()


def paid(**options: Any) -> Any:
    workflow = make_workflow("voting_v0", **options)
    return record(play_experts(workflow, workflow.task.problem(0)))


def resolved(effect: Any, judge: Any = None) -> Any:
    task = EndingTask()
    return resolve(task, [(task.problem(0), effect)], judge)


def played(workflow: Workflow, policy: Any) -> Any:
    job = EpisodeJob(workflow.task.problem(0), "e")
    return Rollout(workflow, PolicyMap.shared(policy, workflow.role_counts())).run([job])


def answered() -> Any:
    request = Request(("e",), "judge", "judge", [])
    return asyncio.run(FunctionJudge(end).generate([request]))


def ray_worker() -> Any:
    failed: Any = AnsweringActor("rollout worker 3", ".")._answer(end)
    raise failed.error if isinstance(failed.error, Exception) else FlowzooError(failed.error)


STEP = StepControl(3, {}, (), None, {})
SAID = Reply(0, "generator_0", "x", "x", "x")
KINDS: dict[str, tuple[Callable[[], Any], str]] = {
    "named": (lambda: FunctionSetting("credit", f"{__name__}:end")({}), "credit .*:end"),
    "advantage": (lambda: hook(AdvantageFunction, end, "--a")([], Any, {}), "--a m:f"),
    "loss": (lambda: hook(LossFunction, end, "--l")(*[Any] * 4), "--l m:f"),
    "callback": (lambda: hook(Callback, end, "--c")(STEP), "--c m:f at step 3"),
    "credit": (lambda: paid(credit=end), "credit .*end"),
    "reward": (lambda: paid(episode_reward=end), "problem math/train/0/.*episode_reward .*end"),
    "script": (lambda: played(Endless(MathTask()), Replies()), r"problem math/.*play\(\) raised"),
    "parser": (lambda: played(Parsing(MathTask()), Replies()), "parser of generator_0"),
    "workflow": (lambda: make_workflow(Making), "workflow single_v0: making it raised"),
    "task": (lambda: make_task(Unmade), "task 'math': making it"),
    "problem": (lambda: get_problem(EndingTask(), 1), r"task 'math': problem\(1, 'train'\)"),
    "grader": (lambda: resolved(Grade("1")), "task 'math': grade_batch"),
    "tool": (lambda: resolved(UseTool(ToolCall("1", "add", {}), EndingTask())), "tool add"),
    "judge": (lambda: resolved(Judge(SAID, "?"), end), "the judge of problem math/"),
    "judge in rollouts": (answered, "the judge"),
    "rollout worker": (ray_worker, "rollout worker 3"),
}


def said(error: BaseException) -> str:
    return "; ".join([str(error), *getattr(error, "__notes__", ())])


@pytest.mark.parametrize("raised", ENDS, ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_an_error_that_names_the_function(kind, raised, monkeypatch):
    monkeypatch.setitem(RAISED, "it", raised)
    call, name = KINDS[kind]
    with pytest.raises(FlowzooError) as caught:
        call()
    message = said(caught.value)
    assert repr(raised) in message or f"{type(raised).__name__}: {raised}" in message
    assert re.search(name, message), message
    assert "\n" not in message


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "rollout worker"])
def test_an_interruption_stays_one(kind, monkeypatch):
    monkeypatch.setitem(RAISED, "it", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        KINDS[kind][0]()


@pytest.mark.parametrize("raised", ENDS[:3], ids=repr)
def test_a_policy_of_ones_own_is_named(raised, monkeypatch):
    monkeypatch.setitem(RAISED, "it", raised)
    with pytest.raises(FlowzooError) as caught:
        played(Single(MathTask()), Replies(end))
    assert "raised by policy 'replies'" in said(caught.value)
    assert repr(raised) in said(caught.value)


TRAJECTORY = """
import sys
from flowzoo.envs.workflows.single import Single

class Mine(Single):
    def trajectory(self, agent):
        sys.exit()

def reward(episode):
    sys.exit(0)
"""


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["single_v0", "--reward", "mine.py:reward"], "raised by --reward mine.py:reward"),
        (["mine.py:Mine"], "in trajectory) ends no run: raise an ordinary error; raised by"),
    ],
)
def test_a_run_whose_code_exits_has_not_succeeded(words, name, tmp_path):
    (tmp_path / "mine.py").write_text(TRAJECTORY, encoding="utf-8")
    usual = ["--steps", "1", "--problems", "2", "--samples", "2", "--eval-problems", "2",
             "--max-tokens", "16", "--out", "run"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "flowzoo", "train", *words, *usual],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2, done.stderr
    assert last.startswith("error: SystemExit(")
    assert name in last
    assert not (tmp_path / "run" / "summary.json").exists()


SLOW = """
import time

def reward(episode):
    print("said by the reward")
    time.sleep(3)
    return 0.5

def callback(step):
    print("said by the callback")
"""
WATCHING = """
import sys
from flowzoo import waits
from flowzoo.cli import main
waits.NAMED_AFTER_S = 0.5
sys.exit(main(sys.argv[1:]))
"""


def trained(folder, *words):
    (folder / "slow.py").write_text(SLOW, encoding="utf-8")
    usual = ["--steps", "1", "--problems", "1", "--samples", "2", "--eval-problems", "2",
             "--max-tokens", "16", "--json", "--out", "run"]  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", WATCHING, "train", "single", *words, *usual],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip


def test_a_function_that_runs_long_is_named_and_its_output_is_not_the_commands(tmp_path):
    words = ["--reward", "slow.py:reward", "--callback", "slow.py:callback"]
    done = trained(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 1
    assert "said by the reward" in done.stderr
    assert "said by the callback" in done.stderr
    line = r"--reward slow.py:reward of problem math/train/0/\S+ has run for [123] s"
    assert re.search(line, done.stderr)
    assert "episode_reward" not in done.stderr


def test_results_that_are_no_numbers_are_named_with_their_row_or_problem():
    logps = torch.zeros(2, 3, requires_grad=True)
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])
    nan = torch.tensor([[0, 0, math.nan], [math.nan, 0, math.inf]])
    loss = hook(LossFunction, lambda new, *given: new + nan, "--loss")
    with pytest.raises(FlowzooError, match=r"--loss m:f must .* got inf for row 1, token 2"):
        loss(logps, logps, torch.zeros(2), mask)
    reward = hook(RewardFunction, lambda episode: math.nan, "--reward")
    episode = SimpleNamespace(problem=Problem("math", "train", 0, 7, "?", "1"))
    with pytest.raises(FlowzooError, match=r"m:f of problem math/train/0/7 must .* got nan"):
        reward(episode)
