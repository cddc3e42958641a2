"""Functions by name: what is loaded or refused, what each may return, and what runs do with it."""

import hashlib
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.hooks import (
    AdvantageFunction,
    Callback,
    Hook,
    LossFunction,
    RewardFunction,
    StepControl,
)
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.trainer import Trainer, train
from flowzoo.envs import Problem, make_workflow
from flowzoo.envs.workflow import FinishedEpisode
from flowzoo.errors import UsageError
from tests.baselines.training.recorder import Recorder
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


PAGE = Path(__file__).parents[3] / "docs" / "hooks.md"
(EXAMPLE,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)


def settings(root: Path, mine: Path, **changes: Any) -> TrainConfig:
    usual: dict[str, Any] = {
        "workflow": "single", "steps": 2, "problems": 3, "eval_problems": 20, "eval_every": 2,
        "checkpoint_every": 1, "threads": 1, "warmup": 0, "max_tokens": 24, "probe_every": 0,
        "truncated": "train", "out": str(root / "run"), "callback": (f"{mine}:watch",),
    }  # fmt: skip
    return TrainConfig(**usual | changes)


def rows(root: Path) -> list[dict[str, Any]]:
    lines = (root / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_the_example_of_the_page_runs(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(EXAMPLE, encoding="utf-8")
    config = settings(
        tmp_path, mine, reward=f"{mine}:brief", advantage_function=f"{mine}:successes",
        loss=f"{mine}:soft_clip",
    )  # fmt: skip
    trainer = Recorder(start_run(config))
    trainer.train()
    given = [advantage for *_, advantage in trainer.learned]
    assert min(given) == 0
    assert max(given) > 0
    zero, first, second = rows(tmp_path)
    assert set(zero["eval/scores"]) <= {0.0, 1.0}, "evaluations keep the task's score"
    assert first["reward/mean"] % (1 / 24) > 0, "and training has the function's"
    best = max(first["reward/mean"], second["reward/mean"])
    assert (second["callback/best_reward"], "callback/best_reward" in zero) == (best, False)
    assert second["learn/lr/shared"] == first["learn/lr/shared"] / 2
    # With every ratio 1 a token's loss is -4 sigmoid(0) A, and a row's the mean of its tokens'.
    wanted = -2 * sum(given[:24]) / 24
    assert first["learn/loss/shared"] == pytest.approx(wanted, rel=1e-3)
    record = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    hooks = record["provenance"]["hooks"]
    assert len(hooks) == 4
    assert len(set(hooks.values())) == 1
    mine.write_text(EXAMPLE.replace("0.1", "0.2"), encoding="utf-8")
    with pytest.raises(UsageError, match=r"another version of the function --\S+ .*mine.py"):
        train(config)


STOPS = """
def watch(step):
    if step.step == 1:
        step.scale_lr(0.5)
        step.stop("enough")
"""


def test_a_run_that_a_callback_stopped_is_finished(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(STOPS, encoding="utf-8")
    config = settings(tmp_path, mine, steps=4)
    summary = train(config)
    assert (summary["stopped"], summary["steps"]) == ("enough", 1)
    found = rows(tmp_path)
    assert [row["step"] for row in found] == [0, 1]
    assert "eval/scores" in found[1], "the last step is evaluated whenever it comes"
    again = Trainer(start_run(config))
    assert again.run.state.finished
    assert [learner.lr_scale for learner in again.run.learners.values()] == [0.5]
    again.close()
    with pytest.raises(UsageError, match="candidate_value=rollout"):
        Trainer(
            start_run(
                settings(tmp_path / "tree", mine, algorithm="at_grpo", reward=f"{mine}:watch")
            )
        )
    with pytest.raises(UsageError, match="`clip_high` is a setting of the clipped objective"):
        Trainer(start_run(settings(tmp_path / "clip", mine, clip_high=0.3, loss=f"{mine}:watch")))


SHIFTED = """
def watch(step):
    pass

def minus(episode):
    return episode.score - 1.0

def plus(episode):
    return episode.score + 7.0
"""


def test_a_constant_in_the_reward_gives_learners_the_same_advantages(tmp_path):
    """Without a baseline, too, and with replies that were cut off before they could be read."""
    mine = tmp_path / "mine.py"
    mine.write_text(SHIFTED, encoding="utf-8")
    found: dict[str, list[float]] = {}
    for name in ("", "minus", "plus"):
        config = settings(
            tmp_path / f"_{name}", mine, workflow="voting", steps=1, algorithm="reinforce",
            max_tokens=16, reward=name and f"{mine}:{name}",
        )  # fmt: skip
        trainer = Recorder(start_run(config))
        trainer.train()
        found[name] = [advantage for *_, advantage in trainer.learned]
        (first,) = rows(tmp_path / f"_{name}")[1:]
        assert first["strict/generator"] < 1
        assert ("pass@8" in first) == (not name)
        assert ("group/solve_none" in first) == (not name)
    assert found["minus"] == found["plus"] == found[""]
    assert set(found[""]) == {0.0, 1.0}


DRAWING = """
import random
import numpy


def watch(control):
    control.log("drawn", random.random() + numpy.random.random())
"""


def test_what_functions_draw_repeats_with_the_seed_and_after_a_resumption(tmp_path):
    """From Python's and NumPy's own generators, whatever the process drew before the run."""
    mine = tmp_path / "mine.py"
    mine.write_text(DRAWING, encoding="utf-8")
    changes = {"problems": 1, "samples": 2, "eval_problems": 1, "model": "pocket:xs"}

    class Dying(Trainer):
        def save(self, step, score):
            if step == 2:
                raise InterruptedError
            super().save(step, score)

    drawn: dict[str, Any] = {}
    for name, seed in (("one", 0), ("two", 0), ("other", 1)):
        config = settings(tmp_path / name, mine, seed=seed, **changes)
        random.random(), np.random.random()
        if name == "two":
            with pytest.raises(InterruptedError):
                Dying(start_run(config)).train()
            random.random(), np.random.random()
        train(config)
        state = tmp_path / name / "run" / "checkpoints" / "step-00000002" / "random.pt"
        drawn[name] = [row["callback/drawn"] for row in rows(tmp_path / name)], state.read_bytes()
    assert drawn["one"] == drawn["two"]
    assert len(set(drawn["one"][0])) == 3
    assert drawn["one"][0] != drawn["other"][0]
