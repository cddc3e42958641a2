"""Functions by name: what is loaded, what is refused, and what each kind may return."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.baselines.settings.hooks import (
    AdvantageFunction,
    Callback,
    Hook,
    LossFunction,
    RewardFunction,
    StepControl,
)
from flowzoo.envs import Problem, make_workflow
from flowzoo.envs.workflow import FinishedEpisode
from flowzoo.errors import UsageError
from tests.hooked import hook
from tests.refused import refused

CODE = """
from dataclasses import dataclass
@dataclass
class Kept:
    number: int = 1
def half(episode):
    return episode.score / 2 + 1
def nothing(*given):
    return None
def fails(*given):
    raise KeyError("mine")
number = 3
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(CODE, encoding="utf-8")
    return path


def test_a_file_and_a_module_are_found_with_the_digest_of_their_source(mine, monkeypatch):
    digest = hashlib.sha256(CODE.encode()).hexdigest()
    by_file = RewardFunction("--reward", f"{mine}:half")
    monkeypatch.syspath_prepend(str(mine.parent))
    by_module = RewardFunction("--reward", "mine:half")
    assert by_file.digest == by_module.digest == digest
    assert by_file.function is not by_module.function
    mine.write_text(CODE + "# changed\n", encoding="utf-8")
    assert RewardFunction("--reward", f"{mine}:half").digest != digest


@pytest.mark.parametrize(("name", "text"), refused(__file__, "hooks"))
def test_what_cannot_be_loaded_is_an_error_of_one_line(mine, name, text):
    (mine.parent / "broken.py").write_text("1 / 0\n", encoding="utf-8")
    with pytest.raises(UsageError, match=text) as caught:
        Hook("--reward", name.format(folder=mine.parent))
    assert "\n" not in str(caught.value)
    assert "--reward" in str(caught.value)


PROBLEM = Problem("math", "train", 0, 5, "?", "7")
EPISODE = FinishedEpisode(PROBLEM, "7", 1.0, {}, (("solver_0", "7"),))


@pytest.mark.parametrize("came", [None, "1", True, float("nan"), np.array([1.0])])
def test_a_reward_is_a_finite_number(came):
    assert hook(RewardFunction, lambda episode: np.float64(episode.score / 2))(EPISODE) == 0.5
    with pytest.raises(UsageError, match=r"--option m:f of problem math/train/0/5 must return a"):
        hook(RewardFunction, lambda episode: came)(EPISODE)


@pytest.mark.parametrize(
    "came",
    [None, [1.0], [[1.0, 2.0]], ["a", "b"], ["1", "2"], [True, False], [1.0, None],
     [1.0, float("inf")]],
)  # fmt: skip
def test_advantages_are_one_number_a_row(came):
    rows: Any = [None, None]
    given = np.array([1.0, -1.0])
    kept = hook(AdvantageFunction, lambda calls, advantages, returns: [returns["e"], 2])
    assert kept(rows, given, {"e": 0.5}).tolist() == [0.5, 2.0]
    with pytest.raises(UsageError, match="2 finite numbers, one a row"):
        hook(AdvantageFunction, lambda *_: came)(rows, given, {})


def test_a_loss_is_a_tensor_like_the_logps():
    torch = pytest.importorskip("torch", reason="losses need flowzoo[train]")
    logps, advantages = torch.zeros(2, 3), torch.ones(2)
    mask = torch.ones(2, 3, dtype=torch.bool)
    found = hook(LossFunction, lambda now, *_: now + 1)(logps, logps, advantages, mask)
    assert torch.equal(found, torch.ones(2, 3))
    for came, text in (
        (lambda now, *_: now.sum(), r"shape \(\)"),
        (lambda *_: 1.0, "float"),
        (lambda *_: np.zeros((2, 3)), "ndarray"),
    ):
        with pytest.raises(UsageError, match=rf"shape \(2, 3\), got.*{text}"):
            hook(LossFunction, came)(logps, logps, advantages, mask)
    with pytest.raises(UsageError, match=r"shape \(2, 3\) made of `logps`, got one without a grad"):
        hook(LossFunction, lambda now, *_: now.detach())(
            logps.clone().requires_grad_(), logps, advantages, mask
        )


def test_what_a_function_raises_says_whose_it_was(mine):
    with pytest.raises(KeyError) as caught:
        RewardFunction("--reward", f"{mine}:fails")(EPISODE)
    assert caught.value.__notes__ == [f"raised by --reward {mine}:fails of problem {PROBLEM.id}"]


def control() -> StepControl:
    return StepControl(3, {"step": 3}, [{"step": 2}], None, {"a": 1.0, "b": 0.5})


def test_a_callback_changes_what_it_may_and_nothing_else():
    step = control()
    step.log("mine", 2)
    step.scale_lr(0.25, "a")
    step.stop("enough")
    assert (step.logged, step.scales, step.stopped) == (
        {"callback/mine": 2.0}, {"a": 0.25, "b": 0.5}, "enough",
    )  # fmt: skip
    step.scale_lr(2.0)
    assert step.scales == {"a": 2.0, "b": 2.0}
    for table in (step.metrics, step.history[0]):
        with pytest.raises(TypeError):
            table["step"] = 4


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (lambda step: step.log("x", "1"), "must be a number"),
        (lambda step: step.log("x", float("nan")), "must be finite"),
        (lambda step: step.scale_lr(-1.0), "at least 0"),
        (lambda step: step.scale_lr(1.0, "c"), "no trained policy 'c'; there are a, b"),
        (lambda step: 5, "must return nothing"),
    ],
)
def test_mistakes_of_a_callback(action, text):
    with pytest.raises(UsageError, match=text):
        hook(Callback, action)(control())


def test_a_workflow_pays_by_its_own_reward():
    """Through the credit rule: the score is what the function says, and so is the calls' part."""
    seen: list[FinishedEpisode] = []

    def reward(episode):
        seen.append(episode)
        return 0.25 + episode.score / 2

    plain = make_workflow("voting_v0", "math")
    paid = make_workflow("voting_v0", "math", episode_reward=hook(RewardFunction, reward))
    found = []
    for workflow in (plain, paid):
        policy_map = PolicyMap.shared(ScriptedPolicy(workflow, 0.6), workflow.role_counts())
        jobs = [EpisodeJob(workflow.task.problem(index, "train")) for index in range(6)]
        found.append(Rollout(workflow, policy_map).sample(jobs).records)
    assert {record.score for record in found[0]} == {0.0, 1.0}
    for before, after in zip(*found, strict=True):
        assert after.score == 0.25 + before.score / 2
        assert after.answer == before.answer
        for call in after.calls:
            assert call.reward == call.parts["team"] == after.score
    assert [one.score for one in seen] == [record.score for record in found[0]]
    last, episode = found[0][-1], seen[-1]
    assert episode.problem.id == last.problem
    assert episode.replies == tuple((call.agent, call.reply) for call in last.calls)
    assert plain.spec_digest == make_workflow("voting_v0", "math").spec_digest
    assert "episode_reward" not in plain.spec
    assert "episode_reward" in paid.spec
