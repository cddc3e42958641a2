"""Settings from files: every bundled one loads, mistakes are named, differences have reasons."""

import json
import re
from collections import Counter
from dataclasses import asdict, fields, replace
from fnmatch import filter as matching
from pathlib import Path
from typing import Any

import pytest

from flowzoo.baselines.matrix.file import FOLDER as MATRICES
from flowzoo.baselines.matrix.file import load_matrix
from flowzoo.baselines.settings.algorithms import ALGORITHMS
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.deviations import PublishedField, deviations, published_facts
from flowzoo.baselines.settings.file import FOLDER, bundled_names, from_table, load_config
from flowzoo.baselines.settings.layers import without_models
from flowzoo.baselines.settings.policies import of_policy, with_values
from flowzoo.cli import main
from flowzoo.commands.line import parse
from flowzoo.envs.api.registry import workflow_class
from flowzoo.envs.settings import read_settings
from flowzoo.errors import DataError, UsageError
from tests.refused import refused

PAPER = "paper/voting-math"
NAMES = bundled_names(FOLDER)


def command_line(*words: str) -> TrainConfig:
    """The settings that `flowzoo train WORDS` would run with."""
    options: Any = parse(("train", *words)).command
    return options.settings


def written(tmp_path: Path, text: str) -> str:
    """The path of a settings file with `text`."""
    path = tmp_path / "own.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_there_is_a_config_for_every_published_run():
    workflows, tasks = ("voting", "eval_opt", "orch_workers", "single"), ("math", "code")
    assert {f"paper/{flow}-{task}" for flow in workflows for task in tasks} < set(NAMES)
    published = [name.replace("paper/", "published/") for name in NAMES if "paper/" in name]
    assert [name for name in NAMES if "published" in name] == published
    assert {name.partition("/")[0] for name in NAMES if name not in published} == {
        "paper", "dr_mas", "at_grpo", "magrpo",
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_bundled_file_loads_at_both_sizes(name):
    full, pocket = load_config(name), load_config(f"{name}@pocket")
    for config in (full, pocket):
        assert config.algorithm in ALGORITHMS
        read_settings(config.options)
        roles = workflow_class(config.workflow).roles
        assert roles
    assert (full.engine, full.compute, full.deterministic) == ("vllm", "bfloat16", False)
    assert (pocket.engine, pocket.compute) == ("transformers", "float32")
    assert pocket.deterministic
    assert full.model.startswith("Qwen/")
    assert pocket.model.startswith("pocket")
    assert not any("data=" in word or "retriever=" in word for word in pocket.options)
    # The small version is the same experiment: only scale and engine differ.
    for field in ("workflow", "task", "algorithm", "sharing", "updates"):
        if field != "updates" or full.updates == 0:
            assert getattr(full, field) == getattr(pocket, field), field


def test_what_the_paper_published_is_in_its_files():
    config = load_config(PAPER)
    assert (config.problems, config.samples, config.steps) == (64, 8, 500)
    assert (config.lr, config.weight_decay, config.warmup) == (2e-5, 0.01, 15)
    assert (config.clip_low, config.clip_high, config.temperature) == (0.2, 0.28, 0.7)
    assert (config.lora_rank, config.lora_alpha, config.schedule) == (64, 32, "cosine")
    assert (config.updates, config.rows_per_update, config.schedule_clock) == (0, 512, "update")
    assert load_config("paper/single-code").max_prompt == 4096
    assert load_config("at_grpo/plan_path").candidates == 4
    assert load_config("dr_mas/search").updates == 5


LENGTHS = {
    "eval_opt-math": (30720, 5120), "voting-math": (20480, 5120),
    "orch_workers-math": (20480, 5120), "single-math": (15360, 5120),
    "eval_opt-code": (10240, 2048), "voting-code": (10240, 2048),
    "orch_workers-code": (10240, 2048), "single-code": (4096, 2048),
}  # fmt: skip
"""Most tokens of a prompt and a reply in the task configurations of the public code."""


@pytest.mark.parametrize("size", ["", "@pocket"])
@pytest.mark.parametrize("run", LENGTHS)
def test_a_published_config_is_the_papers_but_for_what_the_public_code_does(run, size):
    paper, published = load_config(f"paper/{run}{size}"), load_config(f"published/{run}{size}")
    assert size or LENGTHS[run] == (published.max_prompt, published.max_tokens)
    grader = ("grader=published",) * run.endswith("-math")
    assert published == replace(
        paper,
        options=("preset=published", *paper.options[1:], *grader),
        schedule_clock="published",
        truncated="train",
        old_logp="recomputed",
        importance_cap=1.0,
        importance_floor=1.0,
        eval_every=10,
        checkpoint_every=5,
    )
    assert command_line("--config", f"published/{run}{size}") == published


def test_what_a_base_is_for_is_not_asked_for_itself():
    with pytest.raises(UsageError, match="unknown config 'published'"):
        load_config("published")
    with pytest.raises(UsageError, match="Did you mean 'published/voting-math'"):
        load_config("published/votin-math")
    with pytest.raises(UsageError, match="'poket'"):
        load_config("published/voting-math@poket")


def test_a_variant_changes_what_it_names_and_keeps_the_rest(tmp_path):
    text = "lr = 1\nsteps = 7\nsharing = ['isolated']\n[pocket]\nsteps = 2\n"
    name = written(tmp_path, text)
    config, pocket = load_config(name), load_config(f"{name}@pocket")
    assert (config.lr, config.steps, config.sharing) == (1, 7, ("isolated",))
    assert (pocket.lr, pocket.steps, pocket.sharing) == (1, 2, ("isolated",))
    two = written(tmp_path, f"{text}[tiny]\nsteps = 1\n")
    assert [load_config(f"{two}@{one}").steps for one in ("pocket", "tiny")] == [2, 1]


def test_a_table_that_nobody_asked_for_is_refused(tmp_path):
    remedy = r"the table \[settings\] in .*own\.toml .*above all tables, or .*own\.toml@settings$"
    name = written(tmp_path, "[settings]\nsteps = 3\n")
    with pytest.raises(UsageError, match=remedy):
        load_config(name)
    with pytest.raises(UsageError, match=remedy):
        command_line("--config", name)
    assert load_config(f"{name}@settings").steps == 3
    with pytest.raises(UsageError, match=r"own\.toml has \[\[cells\]\] .* `flowzoo matrix`"):
        load_config(written(tmp_path, "[settings]\nsteps = 3\n[[cells]]\ntask = ['math']\n"))


@pytest.mark.parametrize(
    ("wrong", "asked"),
    [("pocket", ""), ("pocket", "@tiny"), ("tiny", "@tiny"), ("tiny", "@pocket")],
)
def test_every_variant_of_a_file_is_checked(tmp_path, wrong, asked):
    names = ["pocket", "tiny"] if asked else ["pocket"]
    fields = {name: "stepz" if name == wrong else "steps" for name in names}
    text = "".join(f"[{name}]\n{field} = 2\n" for name, field in fields.items())
    message = rf"unknown field in .*own\.toml, table \[{wrong}\] 'stepz'.*mean 'steps'"
    with pytest.raises(UsageError, match=message):
        load_config(written(tmp_path, text) + asked)


@pytest.mark.parametrize(("text", "message"), refused(__file__, "files"))
def test_mistakes_in_a_file_are_named(tmp_path, text, message):
    with pytest.raises(UsageError, match=message):
        load_config(written(tmp_path, text))


def test_a_mistake_in_the_name_of_a_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"unknown config 'paper/votin-math'.*paper/voting-math"):
        load_config("paper/votin-math")
    with pytest.raises(UsageError, match=r"unknown variant in .* 'poket'.*pocket"):
        load_config(f"{PAPER}@poket")
    with pytest.raises(UsageError, match=r"there is no file nowhere\.toml"):
        load_config("nowhere.toml")
    with pytest.raises(DataError, match="is not TOML"):
        load_config(written(tmp_path, "steps 3"))
    with pytest.raises(UsageError, match="unknown variant"):
        load_config(written(tmp_path, "steps = 3") + "@pocket")


@pytest.mark.parametrize(
    ("steps", "evaluations", "checkpoints"),
    [(1, 1, 1), (4, 1, 1), (9, 1, 1), (14, 2, 2), (40, 8, 8), (49, 9, 9), (50, 10, 10),
     (99, 10, 10), (100, 20, 10), (1000, 20, 10)],
)  # fmt: skip
def test_a_run_is_evaluated_six_times_or_more_if_it_does_not_say_how_often(
    steps, evaluations, checkpoints
):
    found = without_models(TrainConfig(steps=steps))
    assert (found.eval_every, found.checkpoint_every) == (evaluations, checkpoints)
    assert len({0, steps, *range(0, steps, found.eval_every)}) >= min(6, steps + 1)
    assert found.eval_every % found.checkpoint_every == 0  # the best one has a checkpoint
    assert without_models(found) == found


def test_what_says_how_often_it_is_evaluated_keeps_it():
    mine = TrainConfig(eval_every=3, checkpoint_every=7, shard_jobs=0)
    begun = {**asdict(TrainConfig()), "eval_every": 20, "checkpoint_every": 10}
    for kept in (without_models(mine), without_models(mine, begun)):
        assert (kept.eval_every, kept.checkpoint_every, kept.shard_jobs) == (3, 7, 0)
    assert without_models(TrainConfig(eval_every=25)).checkpoint_every == 10
    # A run that is continued keeps its own, also where it becomes longer.
    kept = without_models(TrainConfig(steps=80), {"eval_every": 8, "checkpoint_every": 8})
    assert (kept.eval_every, kept.checkpoint_every) == (8, 8)


def test_the_curve_of_a_run_that_goes_on_is_never_shifted():
    def falling(**changes):
        return TrainConfig(**{"schedule": "cosine", "min_lr": 1e-6, "steps": 4, **changes})

    begun = asdict(without_models(falling()))
    assert begun["schedule_steps"] == 4
    remedy = "--schedule-steps 4 to stay at min_lr 1e-06 after them, or --schedule-steps 8 for"
    with pytest.raises(UsageError, match=remedy):
        without_models(falling(steps=8), begun)
    for length in (4, 8):
        asked = without_models(falling(steps=8, schedule_steps=length), begun)
        assert asked.schedule_steps == length
        assert without_models(falling(steps=8), asdict(asked)).schedule_steps == length, (
            "once is enough"
        )
    assert without_models(falling(steps=3), begun).schedule_steps == 4
    older = {name: value for name, value in begun.items() if name != "schedule_steps"}
    assert without_models(falling(steps=3), older).schedule_steps == 4
    with pytest.raises(UsageError, match="beyond the 4"):
        without_models(falling(steps=8), older)
    assert without_models(TrainConfig(steps=8), asdict(TrainConfig(steps=4))).schedule_steps == 0
    with pytest.raises(UsageError, match="`schedule_steps` must be more than `warmup`: got 2 and"):
        falling(schedule_steps=2)


def test_no_bundled_file_leaves_open_how_often_its_runs_are_evaluated():
    configs = [load_config(name + size) for name in NAMES for size in ("", "@pocket")]
    cells = [cell for name in bundled_names(MATRICES) for cell in load_matrix(name).cells]
    assert all(config.eval_every for config in [*configs, *(cell.config for cell in cells)])


def test_every_field_of_the_settings_can_be_written_in_a_file():
    usual = TrainConfig(algorithm="magrpo")
    table = {
        field.name: list(value) if isinstance(value, tuple) else value
        for field in fields(usual)
        if (value := getattr(usual, field.name)) is not None
    }
    assert from_table(table, "here") == usual


def test_the_command_line_wins_over_the_file():
    config = command_line(
        "eval_opt", f"--config={PAPER}@pocket", "--steps", "6", "--sharing", "shared",
        "--options", "preset=paper", "n_votes=5",
    )  # fmt: skip
    filed = load_config(f"{PAPER}@pocket")
    assert (config.workflow, config.steps, config.sharing) == ("eval_opt", 6, ("shared",))
    assert config.options == ("preset=paper", "n_votes=5")
    assert (config.lr, config.algorithm) == (filed.lr, filed.algorithm)
    assert command_line("--config", f"{PAPER}@pocket") == filed
    assert command_line("--config", "nowhere.toml", "--config", PAPER) == load_config(PAPER)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("--lr 1e-3 evaluator=1e-4 eval_opt", ("1e-3", "evaluator=1e-4")),
        ("--lr=1e-3 evaluator=1e-4 eval_opt", ("1e-3", "evaluator=1e-4")),
        ("--lr evaluator=1e-4 eval_opt --lr 1 --lr 1e-3", ("1e-3", "evaluator=1e-4")),
        ("eval_opt --lr evaluator=1e-4", ("evaluator=1e-4",)),
        ("--lr 1 --lr 1e-3 eval_opt", 1e-3),
        ("--lr None eval_opt", None),
    ],
)
def test_a_setting_by_policy_takes_a_value_and_words(text, value):
    config = command_line(*text.split())
    assert (config.workflow, config.lr) == ("eval_opt", value)
    written = list(value) if isinstance(value, tuple) else value
    if value is not None:
        assert from_table({"workflow": "eval_opt", "lr": written}, "here") == config
    assert from_table({"lr": [1, "evaluator=2"]}, "here").lr == ("1", "evaluator=2")


def test_the_values_of_a_policy_are_its_own_else_the_others():
    config = TrainConfig(lr=("evaluator=1e-4",), optimizer=("sgd", "evaluator=muon"))  # type: ignore[arg-type]
    both = [of_policy(config, name) for name in ("evaluator", "generator")]
    assert [(one.lr, one.optimizer) for one in both] == [(1e-4, "muon"), (None, "sgd")]
    assert of_policy(both[0], "generator") is both[0], "without words there is nothing to read"
    filled = with_values(config, "lr", {"generator": 2e-4})
    assert filled.lr == ("0.0002", "evaluator=1e-4")
    assert with_values(TrainConfig(), "lr", {"a": 2e-4, "b": 2e-4}).lr == 2e-4
    assert with_values(TrainConfig(), "lr", {"a": 2e-4, "b": 1e-5}).lr == ("0.0002", "b=1e-05")
    given = TrainConfig(lr=("1e-3", "a=None"))  # type: ignore[arg-type]
    assert with_values(given, "lr", {"a": 2e-4}).lr == ("1e-3", "a=0.0002")


def test_without_sharing_the_map_is_what_the_algorithm_is_made_for():
    assert TrainConfig().policy_words == ("shared",)
    assert TrainConfig(algorithm="magrpo").policy_words == ("isolated",)
    assert TrainConfig(algorithm="magrpo", sharing=("shared",)).policy_words == ("shared",)
    assert TrainConfig(algorithm="magrpo").directory.name == "voting-math-magrpo-isolated-s0"


STEMS = bundled_names(FOLDER)
VARIANTS = [f"{stem}@published" for stem in STEMS if not stem.startswith(("paper/", "published/"))]
PUBLISHED_NAMES = [*STEMS, *VARIANTS]


def unstated(rows: list[PublishedField]) -> list[str]:
    return [row.field for row in rows if row.state == "unstated"]


@pytest.mark.parametrize("name", PUBLISHED_NAMES)
def test_no_bundled_configuration_differs_without_a_reason(name):
    rows = deviations(name, load_config(name))
    assert unstated(rows) == []
    assert len(rows) >= 40
    assert Counter(row.field for row in rows).most_common(1)[0][1] == 1, "a field has one source"
    assert all(row.reason for row in rows if row.state != "equal")
    assert not [row.field for row in rows if row.state == "differs" and row.published == row.value]
    assert not [row.field for row in rows if row.state != "property" and row.value is None]


CHANGES: dict[str, dict[str, Any]] = {
    "lr": {"lr": 3e-3}, "problems": {"problems": 3}, "samples": {"samples": 7},
    "max_tokens": {"max_tokens": 99}, "max_prompt": {"max_prompt": 999}, "clip_norm":
    {"clip_norm": 9.0}, "truncated": {"truncated": "penalize"},
    "eval_temperature": {"eval_temperature": 0.25}, "model": {"model": "Qwen/Qwen3-0.6B"},
}  # fmt: skip
"""A change of settings by the field that shows it."""


@pytest.mark.parametrize("name", VARIANTS)
def test_a_published_variant_has_what_is_published_and_states_the_rest(name):
    stem = name.partition("@")[0]
    base = {row.field: row for row in deviations(stem, load_config(stem))}
    variant = {row.field: row for row in deviations(name, load_config(name))}
    assert base.keys() <= variant.keys()
    differing = [{field for field, row in rows.items() if row.state == "differs"}
                 for rows in (base, variant)]  # fmt: skip
    assert len(differing[1]) <= 9
    assert len(differing[1]) < len(differing[0]) / 1.8
    # What may differ: names of the same, and what no setting of ours can be.
    assert differing[1] <= {
        "mean_group", "checkpoint_every", "prompts", "importance_cap", "importance_floor",
        "correction", "sharing", "steps", "engine", "microbatch_tokens", "data", "samples",
        "feedback", "engine_dtype", "thinking", "gamma",
    }  # fmt: skip
    # Nothing that was published is lost by a variant.
    equal = {field for field, row in base.items() if row.state == "equal"}
    assert equal - {"samples"} <= {field for field, row in variant.items() if row.state == "equal"}


def test_the_numbers_of_the_published_scripts_are_in_the_variants():
    sokoban = load_config("at_grpo/sokoban@published")
    # sokoban_prompt_1.7B_at_grpo.sh, stateful_L1_prompt.yaml and ppo_trainer/eval.yaml
    assert (sokoban.steps, sokoban.problems, sokoban.candidates) == (200, 32, 4)
    assert (sokoban.max_prompt, sokoban.max_tokens, sokoban.eval_every) == (4096, 2048, 10)
    assert (sokoban.temperature, sokoban.top_p, sokoban.top_k) == (1.5, 0.9, 20)
    assert (sokoban.lora_rank, sokoban.lora_alpha, sokoban.sharing) == (16, 32, ("shared",))
    assert (sokoban.lr, sokoban.warmup, sokoban.min_lr) == (5e-6, 10, 0.3 * 5e-6)
    assert (sokoban.drop_groups, sokoban.eval_temperature, sokoban.eval_samples) == (0.5, 0.0, 1)
    assert load_config("at_grpo/plan_path@published").eval_samples == 5
    math = load_config("dr_mas/math@published")
    # run_math.sh: val_kwargs, val_data_size, test_freq, save_freq
    assert (math.eval_temperature, math.eval_top_p, math.eval_problems) == (0.6, 0.95, 110)
    assert (math.eval_every, math.checkpoint_every, math.old_logp) == (10, 100, "recomputed")
    pair = load_config("magrpo/code@published")
    # magrpo_he_config.yaml: 6 passes over 130 problems, 2 a batch
    assert (pair.steps * pair.problems, pair.temperature, pair.top_p) == (6 * 130, 0.6, 0.6)
    assert (pair.seed, pair.eval_every, pair.eval_problems, pair.candidates) == (42, 4, 4, 4)
    assert load_config("paper/voting-math").eval_max_tokens == 8192
    assert load_config("published/voting-code").eval_max_tokens == 5120


@pytest.mark.parametrize("name", PUBLISHED_NAMES)
def test_a_change_of_a_configuration_is_found(name):
    config = load_config(name)
    known = {row.field for row in deviations(name, config)}
    found = {field for field in CHANGES if field in known}
    assert len(found) >= 7
    for field in sorted(found):
        assert unstated(deviations(name, replace(config, **CHANGES[field]))) == [field]


def test_options_and_the_algorithms_choices_are_compared_too():
    name = "paper/voting-math"
    config = load_config(name)

    def found(**changes: Any) -> list[str]:
        return unstated(deviations(name, replace(config, **changes)))

    assert found(options=(*config.options, "n_votes=5")) == ["n_votes"]
    assert found(algorithm="grpo", clip_high=None) == [
        "clip_high", "mean_group", "std_group", "singleton",
    ]  # fmt: skip


def test_every_group_of_facts_is_of_a_configuration_and_a_file_at_a_commit():
    for facts in published_facts():
        assert set(facts) <= {"configs", "source", "fields", "properties"}
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{7}:[\w-][^:]*\.\w+", facts["source"])
        assert all(matching(PUBLISHED_NAMES, pattern) for pattern in facts["configs"]), facts[
            "configs"
        ]
        for field, entry in facts.get("fields", {}).items():
            if isinstance(entry, dict):
                assert entry.keys() == {"published", "ours", "why"}
                assert entry["published"] != entry["ours"], f"{field} is stated to differ"


def test_the_command_prints_the_table_and_loads_nothing(capsys):
    words = ["train", "--config", "published/voting-math", "--deviations"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "XHMY/marl-llm-workflows@6eafb3c:dashboard/task_configs.py\n" in printed
    assert " 0 changed by @VARIANT or this command" in printed
    assert main([*words, "--lr", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["field"], row["published"], row["value"]) for row in rows
            if row["state"] == "unstated"] == [("lr", 2e-5, 1.0)]  # fmt: skip


def test_a_variant_is_compared_and_other_files_are_refused(capsys, tmp_path):
    assert main(["train", "--config", "paper/voting-math@pocket", "--deviations"]) == 0
    assert capsys.readouterr().out.count("none is stated") == 21
    own = tmp_path / "own.toml"
    own.write_text("steps = 3\n")
    assert main(["train", "--config", str(own), "--deviations"]) == 2
    assert "unknown bundled config" in capsys.readouterr().err
    assert main(["train", "--deviations"]) == 2
    assert "name them with --config" in capsys.readouterr().err
