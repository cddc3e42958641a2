"""The trainer end to end, on the shipped pocket model, in seconds."""

import json
from pathlib import Path
from typing import Any

import pytest

from flowzoo.baselines.advantages.spec import PRESETS, with_choices
from flowzoo.baselines.backends.sync_check import LogprobGapError
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.policies import read_policy_map
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.trainer import Trainer, train
from flowzoo.envs.settings import read_settings
from flowzoo.errors import UsageError
from tests.refused import refused

pytestmark = pytest.mark.xdist_group("trainer")  # they share a run

SMALL: dict[str, Any] = {
    "model": "pocket:xs", "steps": 4, "problems": 2, "samples": 4, "eval_problems": 4,
    "eval_every": 2, "checkpoint_every": 2, "transcripts_every": 2, "threads": 1,
}  # fmt: skip


def run(root: Path, **changes: Any) -> dict[str, Any]:
    """Train small in `root`."""
    return train(TrainConfig(**{**SMALL, **changes, "out": str(root)}))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the small settings, only to be read."""
    root = tmp_path_factory.mktemp("run") / "whole"
    run(root)
    return root


def test_a_run_leaves_metrics_transcripts_checkpoints_and_a_summary(whole, repeated_rows):
    assert [row["step"] for row in repeated_rows(whole)] == [0, 1, 2, 3, 4]
    assert "eval/reward/mean" in repeated_rows(whole)[2]
    assert "eval/reward/mean" not in repeated_rows(whole)[3]
    names = {path.name for path in (whole / "transcripts").iterdir()}
    saved = {f"eval-{step:06d}.jsonl" for step in (0, 2, 4)}
    assert names == saved | {f"train-{step:06d}.jsonl" for step in (2, 4)}
    line = (whole / "transcripts" / "train-000002.jsonl").read_text().splitlines()[0]
    call = json.loads(line)["calls"][0]
    assert call["messages"][0]["role"] == "user"
    assert isinstance(call["advantage"], float)
    line = (whole / "transcripts" / "eval-000002.jsonl").read_text().splitlines()[0]
    assert "advantage" not in json.loads(line)["calls"][0]
    assert list((whole / "tensorboard").iterdir())
    settings = json.loads((whole / "run.json").read_text())["settings"]
    assert settings["problems"] == 2


def test_the_summary_is_returned_and_written(tmp_path):
    summary = run(tmp_path, steps=1, problems=1, workflow="single")
    assert json.loads((tmp_path / "summary.json").read_text()) == json.loads(json.dumps(summary))
    assert summary["gain"]["n"] == 4


def test_sampler_and_learner_agree_on_log_probs(whole, repeated_rows):
    gaps = [value for row in repeated_rows(whole) for key, value in row.items()
            if key.startswith("learn/logp_gap_max")]  # fmt: skip
    assert gaps
    assert max(gaps) < 1e-3


def test_a_sampler_too_far_from_the_learner_ends_the_run(tmp_path, repeated_rows):
    tiny = {"workflow": "single", "steps": 1, "eval_every": 1, "checkpoint_every": 1}
    with pytest.raises(LogprobGapError, match=r"step 1: .* `max_logp_gap` allows 1e-12: "):
        run(tmp_path, **tiny, max_logp_gap=1e-12)
    assert [row["step"] for row in repeated_rows(tmp_path)] == [0]
    run(tmp_path, **tiny, max_logp_gap=1e-3)
    assert [row["step"] for row in repeated_rows(tmp_path)] == [0, 1]


def test_another_seed_gives_other_problems_but_the_same_evaluation(whole, tmp_path, repeated_rows):
    run(tmp_path / "1", seed=1, steps=2)
    first, second = repeated_rows(whole), repeated_rows(tmp_path / "1")
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_kill_9_in_the_middle_then_the_same_command_gives_the_same_numbers(
    whole, tmp_path, warm, kill_before, repeated_rows
):
    killed = tmp_path / "killed"
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in SMALL.items()]
    command = ["flowzoo.cli", "train", "voting", *flags, f"--out={killed}"]
    # In the middle of the second checkpoint: two steps have to be dropped and redone.
    kill_before(command, killed / "checkpoints" / "step-00000004")
    assert [row["step"] for row in repeated_rows(killed)][-1] >= 3
    assert warm(command).finish().returncode == 0
    assert repeated_rows(killed) == repeated_rows(whole)


def test_resuming_with_other_settings_is_refused(whole):
    with pytest.raises(UsageError, match=r"lr 0\.0002 -> 0\.001"):
        run(whole, lr=1e-3)


@pytest.mark.full
def test_more_steps_continue_a_finished_run(whole, tmp_path, repeated_rows):
    run(tmp_path / "short", steps=2)
    run(tmp_path / "short")
    assert repeated_rows(tmp_path / "short") == repeated_rows(whole)


@pytest.mark.full
def test_a_run_goes_on_beyond_its_curve_only_as_asked(tmp_path, repeated_rows):
    small: dict[str, Any] = {"workflow": "single", "schedule": "linear", "warmup": 1}
    run(tmp_path / "straight", **small, schedule_steps=2)
    run(tmp_path / "longer", **small, steps=2)
    with pytest.raises(UsageError, match="goes beyond the 2 over which the linear schedule"):
        run(tmp_path / "longer", **small)
    run(tmp_path / "longer", **small, schedule_steps=2)
    assert repeated_rows(tmp_path / "longer") == repeated_rows(tmp_path / "straight")
    rates = [row["learn/lr/shared"] for row in repeated_rows(tmp_path / "longer")[1:]]
    assert rates == [2e-4, 2e-4, 0.0, 0.0]
    with pytest.raises(UsageError, match="`schedule_steps` is a setting of the schedules linear"):
        run(tmp_path / "constant", workflow="single", schedule_steps=2)


def test_training_and_held_out_problems_do_not_overlap(tmp_path):
    # So many that some would be drawn twice, and next to nothing is said about each.
    run(tmp_path, problems=100, eval_problems=100, samples=2, max_tokens=2, steps=1,
        transcripts_every=1, workflow="single")  # fmt: skip
    texts: dict[str, set[str]] = {"train": set(), "eval": set()}
    for path in (tmp_path / "transcripts").glob("*.jsonl"):
        kind = path.stem.partition("-")[0]
        texts[kind] |= {json.loads(line)["text"] for line in path.read_text().splitlines()}
    assert len(texts["train"]) > 90
    assert not texts["train"] & texts["eval"]


def test_isolated_policies_diverge_and_shared_ones_are_one(tmp_path):
    config = TrainConfig(**{**SMALL, "sharing": ("isolated",), "out": str(tmp_path / "i")})
    trainer = Trainer(start_run(config))
    assert sorted(trainer.run.learners) == ["aggregator", "generator"]
    models = [learner.model for learner in trainer.run.learners.values()]
    assert models[0] is not models[1]
    shared = Trainer(start_run(TrainConfig(**{**SMALL, "out": str(tmp_path / "s")})))
    assert list(shared.run.learners) == ["shared"]
    engines = shared.run.engines
    played = engines.train_policies["shared"].model, engines.eval_policies["shared"].model
    assert played == (shared.run.learners["shared"].model,) * 2


def test_policy_maps():
    roles = {"generator": 2, "aggregator": 1}
    assert read_policy_map(("shared",), roles) == {"generator": "shared", "aggregator": "shared"}
    assert read_policy_map(("isolated",), roles) == {role: role for role in roles}
    by_agent = ("generator_0=a", "generator_1=b", "aggregator=a")
    mapped = {"generator_0": "a", "generator_1": "b", "aggregator": "a"}
    assert read_policy_map(by_agent, roles) == mapped


def test_credit_that_the_algorithm_looks_at_is_taken(tmp_path):
    run(tmp_path, options=("credit=mix",), algorithm="dr_mas", steps=1)


@pytest.mark.full
def test_a_token_budget_ends_the_run_after_the_step_that_reaches_it(tmp_path, repeated_rows):
    summary = run(tmp_path / "a", steps=3, workflow="single")
    needed = repeated_rows(tmp_path / "a")[2]["tokens/total"]
    short = run(tmp_path / "b", steps=3, workflow="single", token_budget=needed)
    assert (summary["steps"], short["steps"], short["training_tokens"]) == (3, 2, needed)
    assert "eval/reward/mean" in repeated_rows(tmp_path / "b")[-1]
    again = run(tmp_path / "b", steps=3, workflow="single", token_budget=needed)
    assert again["training_tokens"] == needed, "a finished run plays nothing more"


REFUSED = refused(__file__, "runs")


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=range(len(REFUSED)))
def test_settings_that_cannot_be_meant_are_refused_before_anything_is_written(
    settings, message, tmp_path
):
    with pytest.raises(UsageError, match=message):
        Trainer(start_run(TrainConfig(**{**SMALL, **settings, "out": str(tmp_path)})))
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_a_run_that_never_began_does_not_bind_the_next_one(tmp_path):
    with pytest.raises(UsageError, match="leave `thinking` out"):
        run(tmp_path, steps=1, thinking=("on",))
    run(tmp_path, steps=1, workflow="single")
    with pytest.raises(UsageError, match="holds a run with other settings"):
        run(tmp_path, steps=1)


@pytest.mark.full
def test_listed_steps_are_evaluated_and_have_checkpoints(tmp_path, repeated_rows):
    tiny = {"eval_every": 0, "checkpoint_every": 0, "problems": 1, "eval_problems": 2}
    tiny["workflow"] = "single"
    run(tmp_path / "parts", steps=1, **tiny, eval_at=(1,))
    run(tmp_path / "whole", steps=5, **tiny, eval_at=(3, 1))
    rows = repeated_rows(tmp_path / "whole")
    assert [row["step"] for row in rows if "eval/scores" in row] == [0, 1, 3, 5]
    saved = sorted(path.name for path in (tmp_path / "whole" / "checkpoints").iterdir())
    assert {"step-00000003", "step-00000005"} <= set(saved)
    settings = json.loads((tmp_path / "whole" / "run.json").read_text())["settings"]
    assert (settings["eval_every"], settings["checkpoint_every"]) == (0, 10)
    with pytest.raises(UsageError, match=r"other settings \(eval_at \[1\] -> \[3, 1\]\)"):
        run(tmp_path / "parts", steps=5, **tiny, eval_at=(3, 1))


def test_choices_of_the_advantage_are_read_as_words():
    words = ["std=none", "mean_group=problem+role", "mean_weight=call", "eps=1e-3"]
    spec = with_choices(PRESETS["grpo"], read_settings(words))
    assert (spec.std, spec.mean_group, spec.mean_weight) == ("none", ("problem", "role"), "call")
    assert spec.eps == 1e-3
    assert spec.std_group == PRESETS["grpo"].std_group


@pytest.mark.full
def test_agents_of_one_role_may_have_policies_of_their_own(tmp_path, repeated_rows):
    sharing = ("generator_0=a", "generator_1=b", "generator_2=b", "aggregator=judge")
    summary = run(tmp_path, steps=1, sharing=sharing, frozen=("judge",), max_prompt=400)
    last = repeated_rows(tmp_path)[-1]
    assert (last["learn/rows/a"], last["learn/rows/b"]) == (8, 16)
    assert "learn/rows/judge" not in last
    assert set(summary["protocol"]["policies"].values()) == {"a", "b", "judge"}


@pytest.mark.full
def test_two_runs_of_one_command_are_equal(tmp_path, repeated_rows):
    changes = {"sharing": ("isolated",), "algorithm": "dr_mas", "workflow": "eval_opt", "steps": 2}
    for name in ("a", "b"):
        run(tmp_path / name, **changes)
    assert repeated_rows(tmp_path / "a") == repeated_rows(tmp_path / "b")
    assert any("learn/loss" in key for row in repeated_rows(tmp_path / "a") for key in row)


@pytest.mark.full
def test_how_often_a_run_is_evaluated_is_recorded_and_stays_when_it_is_continued(
    tmp_path, repeated_rows
):
    def evaluated():
        return [row["step"] for row in repeated_rows(tmp_path) if "eval/scores" in row]

    tiny = {"eval_every": 0, "checkpoint_every": 0, "problems": 1, "eval_problems": 2}
    tiny |= {"workflow": "single", "model": "pocket:xs", "max_tokens": 8}
    run(tmp_path, steps=10, **tiny)
    assert evaluated() == [0, 2, 4, 6, 8, 10]
    settings = json.loads((tmp_path / "run.json").read_text())["settings"]
    assert (settings["eval_every"], settings["checkpoint_every"]) == (2, 2)
    run(tmp_path, steps=15, **tiny)
    assert evaluated() == [0, 2, 4, 6, 8, 10, 12, 14, 15]
    with pytest.raises(UsageError, match=r"other settings \(eval_every 2 -> 3\)"):
        run(tmp_path, steps=15, **(tiny | {"eval_every": 3}))
