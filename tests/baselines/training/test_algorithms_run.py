"""Every algorithm in the trainer, and whole runs: a rubric, a frozen policy, models of others."""

import copy
import json
import random
from collections import defaultdict
from collections.abc import Callable, Hashable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from endpoint import chat, serving
from transformers import MambaConfig, MambaForCausalLM, MistralConfig, MistralForCausalLM

from flowzoo.agents.pocket import load
from flowzoo.baselines.run.manifest import checkpoints
from flowzoo.baselines.settings.algorithms import ALGORITHMS
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.plan import resolve
from flowzoo.baselines.training.trainer import Trainer, train
from flowzoo.cli import main
from flowzoo.envs import Call
from flowzoo.envs.readers.judgments import verdict_line
from flowzoo.errors import UsageError
from tests.baselines.rows import copy_after
from tests.baselines.training.recorder import Recorder

SMALL: dict[str, Any] = {
    "steps": 2, "problems": 2, "eval_problems": 2, "eval_every": 2, "checkpoint_every": 1,
    "transcripts_every": 1, "threads": 1, "warmup": 0, "lr": 5e-3, "max_tokens": 24,
    "model": "pocket:xs",
}  # fmt: skip
Learnt = list[tuple[int, str, Call, float]]


def config(root: Path, **changes: Any) -> TrainConfig:
    """Small settings of a run in `root`."""
    return TrainConfig(**{**SMALL, **changes, "out": str(root)})


def learnt_by(root: Path, **changes: Any) -> tuple[Learnt, Trainer]:
    """What the learners of a run were given, and its trainer."""
    trainer = Recorder(start_run(config(root, **changes)))
    trainer.train()
    return trainer.learned, trainer


def calls_of(root: Path, name: str) -> list[list[dict[str, Any]]]:
    """The calls of every episode in a transcript."""
    lines = (root / "transcripts" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line)["calls"] for line in lines]


def grouped(learned: Learnt, key: Callable[[Call], Hashable]) -> list[list[tuple[Call, float]]]:
    """Rows with their advantages, by step and `key`."""
    found: dict[Hashable, list[tuple[Call, float]]] = defaultdict(list)
    for step, _, call, advantage in learned:
        found[step, key(call)].append((call, advantage))
    return list(found.values())


def test_the_half_of_the_groups_with_the_lowest_means_is_left_out(tmp_path, repeated_rows):
    changes = {"algorithm": "at_grpo", "workflow": "eval_opt", "candidates": 3, "steps": 1}
    whole, _ = learnt_by(tmp_path / "whole", **changes)
    half, _ = learnt_by(tmp_path / "half", drop_groups=0.5, **changes)
    nodes = grouped(whole, lambda call: call.node)
    means = [fmean(call.value or 0.0 for call, _ in node) for node in nodes]
    lowest = sorted(range(len(nodes)), key=means.__getitem__)[: len(nodes) // 2]
    kept = [row for number, node in enumerate(nodes) if number not in lowest for row in node]
    assert [(call, advantage) for *_, call, advantage in half] == kept
    assert repeated_rows(tmp_path / "half")[1]["filter/rows"] == 3 * len(lowest) > 0
    assert "filter/rows" not in repeated_rows(tmp_path / "whole")[1]


SOME = ("grpo", "dr_mas", "magrpo", "reinforce_role", "at_grpo", "magrpo_tree")
"""Every kind of sampling, groups within and across roles, and a running mean."""


@pytest.mark.usual(2)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SOME else pytest.mark.full) for name in ALGORITHMS],
)
def test_it_learns_from_rows_of_its_kind_and_evaluates_without_branching(
    name, tmp_path, repeated_rows
):
    sampling = ALGORITHMS[name].sampling
    changes = {"samples": 6} if sampling == "episodes" else {"candidates": 3, "leaves": 6}
    if sampling == "tree":
        del changes["leaves"]
    steps = 2 if name in SOME else 1  # the loop asks for no algorithm's name
    changes |= {"steps": steps, "checkpoint_every": 2, "eval_problems": 1}
    learned, trainer = learnt_by(tmp_path, algorithm=name, workflow="eval_opt", **changes)
    assert {step for step, *_ in learned} == set(range(1, steps + 1))
    assert all(call.policy == policy for _, policy, call, _ in learned)
    assert any(advantage != 0 for *_, advantage in learned)
    isolated = ALGORITHMS[name].sharing == "isolated"
    policies = {"generator", "evaluator"} if isolated else {"shared"}
    assert set(trainer.run.learners) == {policy for _, policy, _, _ in learned} == policies
    branched = {call.node != "" for _, _, call, _ in learned}
    assert branched == {sampling != "episodes"}
    for calls in calls_of(tmp_path, f"eval-{steps:06}"):
        assert all(call["node"] == "" and call["candidate"] == 0 for call in calls)
    last = repeated_rows(tmp_path)[-1]
    for policy in policies:
        assert last[f"learn/rows/{policy}"] == sum(
            step == steps and named == policy for step, named, *_ in learned
        )
        # Weights at the time of sampling: after the optimizer steps of the step before.
        before = repeated_rows(tmp_path)[steps - 1].get(f"learn/steps/{policy}", 0)
        assert last[f"version/{policy}"] == before
        assert steps == 1 or before > 0


@pytest.mark.usual(1)
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("dr_mas", lambda call: (call.problem, call.role)),
        ("magrpo", lambda call: (call.problem, call.role, call.turn)),
        ("at_grpo", lambda call: call.node),
        ("magrpo_tree", lambda call: (call.node, call.agent)),
    ],
)
def test_advantages_add_up_to_nothing_in_their_group_and_groups_do_not_mix(name, key, tmp_path):
    branching = ALGORITHMS[name].sampling != "episodes"
    changes = {"candidates": 3} if branching else {"samples": 4}
    learned, _ = learnt_by(tmp_path, algorithm=name, options=("level=1",), **changes)
    groups = grouped(learned, key)
    assert len(groups) >= 2 * 2 * 2, "two steps of two problems, two roles"
    for group in groups:
        assert sum(advantage for _, advantage in group) == pytest.approx(0, abs=1e-5)
    assert any(advantage for group in groups for _, advantage in group)


def test_candidates_are_of_one_prompt_and_state_and_one_is_executed(tmp_path, repeated_rows):
    learned, _ = learnt_by(tmp_path, algorithm="at_grpo", candidates=3, sharing=("isolated",))
    for group in grouped(learned, lambda call: call.node):
        calls = [call for call, _ in group]
        assert [call.candidate for call in calls] == [0, 1, 2]
        assert len({(tuple(call.prompt_ids), call.state_hash, call.agent) for call in calls}) == 1
        taken = [call for call in calls if call.executed]
        assert len(taken) == 1
        assert taken[0].value == max(call.value or 0.0 for call in calls)
    # Three generators, then one aggregator: four decisions an episode, of the executed calls.
    saved = calls_of(tmp_path, "train-000001")
    assert [len(calls) for calls in saved] == [4, 4]
    advantages = {
        (call["node"], call["agent"]): call["advantage"] for calls in saved for call in calls
    }
    assert advantages == {
        (call.node, call.agent): pytest.approx(advantage)
        for step, _, call, advantage in learned
        if step == 1 and call.executed
    }
    assert repeated_rows(tmp_path)[-1]["tree/value_tokens"] == 0


LOWER = {"weights": "bfloat16", "compute": "bfloat16"}
CASES: dict[str, dict[str, Any]] = {
    "refill": {"refill": 2, "samples": 3},
    "curriculum": {"curriculum": ("2:level=2",), "samples": 2},
    "running mean": {"algorithm": "reinforce_role", "samples": 2},
    "coherence": {"coherence": 0.5, "updates": 2, "samples": 2},
    "tree": {"algorithm": "at_grpo", "candidates": 2, "select": "sample"},
    "joint": {"algorithm": "magrpo_tree", "candidates": 2, "leaves": 4},
    "schedule": {
        "schedule": "cosine", "schedule_clock": "update", "sharing": ("isolated",), "warmup": 1,
        "updates": 0, "rows_per_update": 4, "samples": 2, "old_logp": "recomputed",
        "workflow": "eval_opt", "entropy": 0.01,
    },
    "adapters": {"lora_rank": 4, "kl": 0.1, "sharing": ("isolated",), "samples": 2,
                 "workflow": "eval_opt"},
    "frozen": {"sharing": ("generator=solver", "aggregator=judge"), "frozen": ("judge",),
               "role_kl": ("generator=0.1",), "coherence": 0.5, "lora_rank": 4, "samples": 2,
               "workflow": "voting"},
    "int8": {"engine_dtype": "int8", "samples": 2},
    "sampling in bfloat16": {"engine_dtype": "bfloat16", "samples": 2, "entropy": 0.01},
    "bfloat16": {**LOWER, "samples": 2, "entropy": 0.01},
    "adapters on bfloat16": {**LOWER, "lora_rank": 2, "samples": 2, "entropy": 0.01},
    "adafactor": {"optimizer": "adafactor", "samples": 2, "entropy": 0.01},
    "cut off": {"top_p": 0.9, "correction": "renormalize", "samples": 2},
}  # fmt: skip


QUICK = ("running mean", "tree", "joint", "schedule", "int8")


@pytest.mark.usual(1)
@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in CASES]
)
def test_a_run_that_crashed_goes_on_with_the_same_numbers_and_weights(
    case, tmp_path, repeated_rows, same_files
):
    steps = 3 if case == "curriculum" else 2  # its second level begins at step 2
    settings = {"workflow": "single", **CASES[case], "steps": steps, "problems": 1, "eval_every": 3}
    killed = copy_after(steps - 1, tmp_path / "whole", tmp_path / "late")
    train(config(tmp_path / "whole", **settings), killed)
    resumed: list[int] = []
    train(config(tmp_path / "late", **settings), lambda row: resumed.append(row["step"]))
    assert resumed == [steps]
    rows = repeated_rows(tmp_path / "whole")
    assert repeated_rows(tmp_path / "late") == rows
    gap = max(row[key] for row in rows for key in row if key.startswith("learn/logp_gap_max"))
    assert (gap > 1e-4) == bool({"weights", "engine_dtype"} & settings.keys()), "of rough sampling"
    same_files(tmp_path / "whole", tmp_path / "late", steps)


SMALL_RUN: dict[str, Any] = {
    "workflow": "single", "steps": 2, "problems": 2, "samples": 4, "eval_problems": 2,
    "max_tokens": 8, "threads": 1, "truncated": "train", "lr": 1e-2,
    "entropy": 0.01,
}  # fmt: skip
"""With an entropy bonus, since a random model is never paid."""


@pytest.fixture
def brought(tmp_path: Path) -> dict[str, str]:
    """Folders of tiny random models with the pocket model's tokenizer."""
    tokenizer = load().tokenizer
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 1,
        "pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id,
        "initializer_range": 0.3,
    }  # fmt: skip
    torch.manual_seed(0)
    attention: dict[str, Any] = {
        "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1,
        "sliding_window": 8, "max_position_embeddings": 512,
    }  # fmt: skip
    models: dict[str, Any] = {
        "mistral": MistralForCausalLM(MistralConfig(**sizes, **attention)),
        "mamba": MambaForCausalLM(MambaConfig(**sizes, state_size=4)),
    }
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    return {name: str(tmp_path / name) for name in models}


def gaps(trainer: Trainer) -> list[float]:
    """Largest difference of the log-probs of sampler and learner, at every step."""
    rows = (trainer.run.directory.root / "metrics.jsonl").read_text().splitlines()[1:]
    return [json.loads(row)["learn/logp_gap_max/shared"] for row in rows]


def test_a_windowed_model_is_padded_and_a_line_says_so(brought, tmp_path, capsys):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL_RUN.items()
             if name != "workflow"]  # fmt: skip
    model, out = brought["mistral"], str(tmp_path / "run")
    assert main(["train", "single", *words, f"--model={model}", f"--out={out}"]) == 0
    said = capsys.readouterr().err
    assert "note: shared: MistralForCausalLM cannot read packed rows" in said
    trainer = Trainer(start_run(TrainConfig(**SMALL_RUN, model=model, out=out)))
    assert trainer.run.config.layout == "auto"
    assert trainer.run.learners["shared"].layout == "padded"
    assert max(gaps(trainer)) < 1e-4
    trainer.close()
    with pytest.raises(UsageError, match="use `layout` padded, or auto"):
        Trainer(
            start_run(
                TrainConfig(**SMALL_RUN, model=model, layout="packed", out=str(tmp_path / "no"))
            )
        )


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 2])
def test_a_recurrent_model_trains(brought, tmp_path, rank):
    config = TrainConfig(
        **SMALL_RUN, model=brought["mamba"], lora_rank=rank, gradient_checkpointing=True,
        out=str(tmp_path / "run"),
    )  # fmt: skip
    trainer = Trainer(start_run(config))
    assert any("not on dt_proj ×1, out_proj ×1" in note for note in trainer.notes) == bool(rank)
    trainer.train()
    assert max(gaps(trainer)) < 1e-4
    assert trainer.run.learners["shared"].steps > 0


RUBRIC = """
[[criterion]]
name = "right"
function = "score"

[[criterion]]
name = "clear"
question = "Is every step there?"
"""


def settings(folder: Path, judge: str, **changes: Any) -> TrainConfig:
    (folder / "rubric.toml").write_text(RUBRIC)
    usual: dict[str, Any] = {
        "workflow": "single", "steps": 2, "problems": 2, "eval_problems": 4, "eval_every": 1,
        "checkpoint_every": 1, "threads": 1, "warmup": 0, "max_tokens": 24, "probe_every": 0,
        "transcripts_every": 1, "reward": f"judge:{folder / 'rubric.toml'}", "judge": judge,
    }  # fmt: skip
    return TrainConfig(**usual | changes)


def rows(out: Path) -> list[dict[str, Any]]:
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    timed = ("time/", "perf/")
    return [
        {name: x for name, x in json.loads(line).items() if not name.startswith(timed)}
        for line in lines
    ]


def test_a_resumed_run_repeats_with_a_judge_who_never_says_the_same_twice(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOWZOO_CACHE", str(tmp_path / "cache"))
    rng = random.Random(0)

    def answer(body: dict[str, Any], count: int) -> Any:
        verdict = verdict_line(body["messages"], rng.random())
        return chat("Well." if count % 4 == 0 else verdict)

    with serving() as server:
        server.answer = answer
        judge = f"openai:judge@{server.url}"
        train(settings(tmp_path, judge, out=str(tmp_path / "whole")))
        asked = len(server.seen)
        train(settings(tmp_path, judge, out=str(tmp_path / "parts"), steps=1))
        train(settings(tmp_path, judge, out=str(tmp_path / "parts")))
        assert len(server.seen) == asked, "the cache has every verdict"
    whole = rows(tmp_path / "whole")
    assert rows(tmp_path / "parts") == whole
    assert sum(row.get("judge/ungraded", 0) for row in whole) > 0
    assert set(whole[0]["eval/scores"]) <= {0.0, 1.0}, "evaluations ask no judge"
    assert "eval/judge/verdicts" not in whole[0]
    file = tmp_path / "whole" / "transcripts" / "train-000001.jsonl"
    episodes = [json.loads(line) for line in file.read_text().splitlines()]
    for row in episodes:
        (judgment,) = row["judgments"]
        assert row["facts"]["rubric/clear"] == judgment["score"]
        assert row["score"] == pytest.approx((judgment["truth"] + judgment["score"]) / 2)
        assert "Is every step there?" in judgment["messages"][0]["content"]


def test_settings_are_checked_before_models_are_loaded(tmp_path):
    with pytest.raises(UsageError, match="asks a judge, and there is none: set `judge`"):
        resolve(settings(tmp_path, ""))
    with pytest.raises(UsageError, match="is asked nothing"):
        resolve(settings(tmp_path, "scripted:1", reward=""))
    with pytest.raises(UsageError, match="unknown policy 'gpt'"):
        resolve(settings(tmp_path, "gpt"))
    config = settings(tmp_path, "scripted:1")
    before = resolve(config).hooks.record()
    (tmp_path / "rubric.toml").write_text(RUBRIC + "weight = 2\n")
    assert resolve(config).hooks.record() != before, "a run does not go on with another rubric"


def frozen_config(root: Path, **changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "steps": 2, "problems": 2, "samples": 4, "eval_problems": 2, "checkpoint_every": 1,
        "threads": 1, "sharing": ("generator=solver", "aggregator=judge"), "frozen": ("judge",),
        "role_kl": ("generator=0.1",), "coherence": 0.5, "out": str(root), "lr": 5e-3,
    }  # fmt: skip
    return TrainConfig(**{**settings, **changes})


@pytest.mark.parametrize("rank", [0, pytest.param(4, marks=pytest.mark.full)])
def test_it_gets_no_learner_and_no_checkpoint(rank, tmp_path, repeated_rows):
    train(frozen_config(tmp_path, lora_rank=rank))
    last = repeated_rows(tmp_path)[-1]
    assert last["learn/rows/solver"] > 0
    assert last["learn/reference_kl/solver"] > 0
    assert last["version/solver"] >= 1
    assert not [name for name in last if name.endswith("/judge") and name.startswith("learn/")]
    info = checkpoints(tmp_path / "checkpoints")[-1]
    assert (info.policies, dict(info.frozen)) == (("solver",), {"judge": "pocket:math"})
    assert [path.name for path in (info.path / "policies").iterdir()] == ["solver"]


def test_its_weights_never_change_while_the_others_move(tmp_path):
    trainer = Trainer(start_run(frozen_config(tmp_path)))
    models = {name: one.weights.model for name, one in trainer.run.state.trained.items()}
    before = {name: copy.deepcopy(model.state_dict()) for name, model in models.items()}
    trainer.train()
    moved = {
        name: any(not value.equal(before[name][key]) for key, value in model.state_dict().items())
        for name, model in models.items()
    }
    assert moved == {"solver": True, "judge": False}
