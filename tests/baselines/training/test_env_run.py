"""Training in environments of others: which rows are learned from, resuming, improvement."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Text
from pettingzoo import AECEnv

from flowzoo.baselines.advantages.compute import RunningMean
from flowzoo.baselines.report.write import write_report
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.advantage_computer import FilteredBatch
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.plan import resolve
from flowzoo.baselines.training.trainer import Trainer, train
from flowzoo.cli import main
from flowzoo.envs import Call
from flowzoo.errors import UsageError
from tests.baselines.training.recorder import Recorder
from tests.refused import refused

pytestmark = pytest.mark.xdist_group("env_run")  # they share a run

ROOT = Path(__file__).resolve().parents[3]
SMALL: dict[str, Any] = {
    "env": f"{__file__}:make", "model": "pocket:math", "steps": 2, "problems": 2, "samples": 4,
    "eval_problems": 4, "eval_every": 1, "checkpoint_every": 1, "transcripts_every": 1,
    "max_tokens": 8, "truncated": "train", "threads": 1, "warmup": 0, "lr": 5e-3,
}  # fmt: skip
Learnt = list[tuple[Call, float]]


class Digits(AECEnv[str, Any, Any]):
    """Two speakers take two turns each; the last digit of a reply, times 0.05, is paid to the
    speaker and taken from the other.
    """

    metadata = {"name": "digits_v0"}  # noqa: RUF012 - as PettingZoo's environments have it

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["first_0", "second_0"]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.agents = list(self.possible_agents)
        self.told = np.random.default_rng(seed).integers(10, 99, 4).tolist()
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.agent_selection, self.turns = "first_0", 0

    def action_space(self, agent: str) -> Any:
        return Text(100)

    def observe(self, agent: str) -> str:
        return f"Compute {self.told[min(self.turns, 3)]}+1."

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        other = "second_0" if agent == "first_0" else "first_0"
        paid = 0.05 * int(next((letter for letter in reversed(action) if letter in "123456789"), 0))
        self.rewards = {agent: paid, other: -paid}
        self.turns += 1
        if self.turns == 4:
            self.terminations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()
        self.agent_selection = other


def make() -> Any:
    from flowzoo.envs import TextEnv

    return TextEnv(Digits(), scored=("second_0",), score_range=(-1, 1))


def weights(root: Path) -> list[bytes]:
    """The files of weights in the last checkpoint of a run."""
    last = max((root / "checkpoints").glob("step-*"))
    found = [path.read_bytes() for path in sorted(last.rglob("*.safetensors"))]
    assert found
    return found


def run(root: Path, **changes: Any) -> dict[str, Any]:
    """Train small in `root`."""
    return train(TrainConfig(**{**SMALL, **changes, "out": str(root)}))


def learnt_by(root: Path, **changes: Any) -> Learnt:
    """What the learners of a run of one step were given."""
    quick = {"steps": 1, "eval_problems": 1, "probe_every": 0, "role_gradients": False}
    trainer = Recorder(start_run(TrainConfig(**{**SMALL, **quick, **changes, "out": str(root)})))
    trainer.train()
    return [(call, advantage) for *_, call, advantage in trainer.learned]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two steps, only to be read."""
    root = tmp_path_factory.mktemp("env") / "whole"
    run(root)
    return root


def test_metrics_transcripts_and_summary_name_agents_and_roles(whole, repeated_rows):
    first = repeated_rows(whole)[0]
    assert {"eval/reward/first", "eval/strict/second", "eval/fact/return/second_0"} <= set(first)
    scores = first["eval/fact/return/second_0"]
    assert first["eval/reward/mean"] == pytest.approx((scores + 1) / 2)
    line = (whole / "transcripts" / "train-000001.jsonl").read_text().splitlines()[0]
    episode = json.loads(line)
    assert (episode["workflow"], episode["task"]) == ("aec_v0", "digits_v0")
    assert [call["agent"] for call in episode["calls"]] == ["first_0", "second_0"] * 2
    assert sum(episode["returns"].values()) == pytest.approx(0)
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["task"] == "digits_v0"
    assert set(summary["policies"]) == {"first", "second"}
    assert "make" in summary["protocol"]["settings"]["source"]


def test_the_report_shows_the_environment_and_its_agents(whole, tmp_path):
    (page,) = write_report([whole], tmp_path / "report.html")
    text = page.read_text(encoding="utf-8")
    assert "digits_v0" in text
    assert "first_0" in text
    assert "second_0" in text


@pytest.mark.parametrize("algorithm", ["grpo", pytest.param("rloo", marks=pytest.mark.full)])
def test_agents_are_compared_with_themselves_in_other_episodes(algorithm, tmp_path):
    learned = learnt_by(tmp_path, algorithm=algorithm, sharing=("isolated",))
    groups: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
    for call, advantage in learned:
        group = groups.setdefault((call.problem, call.agent), {})
        given = group.setdefault(call.episode, (call.parts["local"], advantage))
        assert given == (call.parts["local"], advantage)  # all calls of an agent have its return
    assert len(groups) == 4  # two problems, two agents
    for group in groups.values():
        assert len(group) == 4
        paid, advantages = (np.array(column) for column in zip(*group.values(), strict=True))
        expected = paid - paid.mean()
        if algorithm == "rloo":
            expected *= 4 / 3
        else:
            expected /= paid.std(ddof=1) + 1e-6
        assert advantages == pytest.approx(expected, abs=1e-9)


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> FilteredBatch:
    """What a run has sampled for its first step, of whole episodes."""
    settings = {**SMALL, "steps": 1, "eval_problems": 1, "probe_every": 0}
    trainer = Trainer(
        start_run(TrainConfig(**settings, out=str(tmp_path_factory.mktemp("gathered"))))
    )
    sampled = trainer.run.batches.take(1)
    trainer.close()
    return sampled.gathered


@pytest.mark.full
@pytest.mark.parametrize(
    "algorithm",
    ["dr_grpo", "dr_mas", "dr_mas_mean", "paper", "magrpo", "reinforce", "reinforce_max",
     "reinforce_role", "grpo_call"],
)  # fmt: skip
def test_every_algorithm_of_whole_episodes_learns_from_every_call(algorithm, gathered):
    """Their runs sample alike, and differ in what every call is worth."""
    plan = resolve(TrainConfig(**SMALL, algorithm=algorithm))
    assert plan.samples == SMALL["samples"]
    values = plan.compute_advantages(gathered.sampled, RunningMean()).values
    assert len(values) == sum(map(gathered.trains, gathered.sampled.rows)) == 2 * 4 * 4
    assert values.any()


@pytest.mark.full
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [("at_grpo", {"candidate_value": "rollout", "candidates": 2}), ("magrpo_tree", {"leaves": 4})],
)
def test_algorithms_that_branch_play_the_replies_again(algorithm, settings, tmp_path):
    learned = learnt_by(tmp_path, algorithm=algorithm, samples=1, **settings)
    assert {call.agent for call, _ in learned} == {"first_0", "second_0"}
    assert any(advantage for _, advantage in learned)


@pytest.mark.parametrize(("changes", "said"), refused(__file__, "environments"))
def test_settings_that_cannot_be_meant_are_refused_in_one_line(changes, said, tmp_path):
    with pytest.raises(UsageError, match=said) as caught:
        run(tmp_path, **changes)
    assert "\n" not in str(caught.value)


def test_policies_are_given_to_roles_or_to_agents_by_their_own_names(tmp_path):
    by_agent = {call.policy: call.agent for call, _ in learnt_by(
        tmp_path, sharing=("first_0=new", "second=old"), frozen=("old",)
    )}  # fmt: skip
    assert by_agent == {"new": "first_0"}


def test_the_run_directory_is_named_after_the_environment():
    config = TrainConfig(env="some/games.py:make", seed=3)
    assert str(config.directory) == "runs/aec-some-games.py-make-grpo-shared-s3"


def test_an_environment_is_evaluated_by_name(tmp_path, capsys):
    words = ["eval", "--env", f"{__file__}:make", "--policy", "pocket:math", "--n", "3"]
    assert main([*words, "--max-tokens", "8", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "aec_v0 on digits_v0" in said
    assert "return/second_0" in said
    assert said.splitlines()[-1].startswith("score ")
    assert main(["eval", "single", "--env", f"{__file__}:make"]) == 2
    assert "name either a workflow" in capsys.readouterr().err


def test_an_environment_is_played_before_it_is_trained_in(capsys):
    words = ["play", "--env", f"{__file__}:make", "--policy", "pocket:math", "--max-tokens", "8"]
    assert main([*words, "--chats"]) == 0
    shown = capsys.readouterr().out
    assert "digits_v0/validation/0/0" in shown
    assert "return/second_0" in shown
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["workflow"] == "aec_v0"
    assert main([*words, "--task", "math"]) == 2
    assert "--task is a setting of tasks" in capsys.readouterr().err
    assert main(["play"]) == 2
    assert "name either a workflow, e.g. `flowzoo play voting`" in capsys.readouterr().err


def tictactoe(root: Path, **changes: Any) -> TrainConfig:
    """The pocket model of arithmetic at tic-tac-toe, where a wrong move loses."""
    settings: dict[str, Any] = {
        "env": str(ROOT / "examples" / "tictactoe.py:make"), "options": ("illegal=end",),
        "model": "pocket:math", "steps": 24, "problems": 8, "samples": 16, "max_tokens": 6,
        "truncated": "train", "lr": 6e-4, "eval_problems": 200, "eval_every": 12, "threads": 1,
        "probe_every": 0, "role_gradients": False, "out": str(root),
    }  # fmt: skip
    return TrainConfig(**{**settings, **changes})


def test_a_classic_game_of_pettingzoo_trains_and_resumes(tmp_path, repeated_rows):
    pytest.importorskip("pygame", reason="PettingZoo's classic games need pygame: flowzoo[dev]")
    quick: dict[str, Any] = {"problems": 2, "samples": 4, "eval_problems": 8, "eval_every": 1}
    train(tictactoe(tmp_path / "whole", steps=2, checkpoint_every=1, **quick))
    train(tictactoe(tmp_path / "parts", steps=1, checkpoint_every=1, **quick))
    train(tictactoe(tmp_path / "parts", steps=2, checkpoint_every=1, **quick))
    assert repeated_rows(tmp_path / "whole") == repeated_rows(tmp_path / "parts")
    assert weights(tmp_path / "whole") == weights(tmp_path / "parts")
    line = (tmp_path / "whole/transcripts/eval-000000.jsonl").read_text().splitlines()[0]
    episode = json.loads(line)
    assert episode["task"] == "tictactoe_v3"
    assert episode["calls"][0]["messages"][0]["content"] == "123\n456\n789"
    assert {call["agent"] for call in episode["calls"]} == {"player_1"}


@pytest.mark.full
def test_a_classic_game_of_pettingzoo_is_learnt(tmp_path):
    pytest.importorskip("pygame", reason="PettingZoo's classic games need pygame: flowzoo[dev]")
    summary = train(tictactoe(tmp_path, seed=1, eval_every=4, eval_problems=60, stop_at=0.4))
    assert summary["gain"]["low"] > 0
