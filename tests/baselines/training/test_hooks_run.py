"""The example of docs/hooks.md in a run: what its functions change, and what a resumption sees."""

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.trainer import Trainer, train
from flowzoo.errors import UsageError
from tests.baselines.training.recorder import Recorder

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
