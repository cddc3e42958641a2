"""Every bundled configuration beside the published one: no difference is without its reason."""

import json
import re
from collections import Counter
from dataclasses import replace
from fnmatch import filter as matching
from typing import Any

import pytest

from flowzoo.baselines.settings.deviations import PublishedField, deviations, published_facts
from flowzoo.baselines.settings.file import FOLDER, bundled_names, load_config
from flowzoo.cli import main

STEMS = bundled_names(FOLDER)
VARIANTS = [f"{stem}@published" for stem in STEMS if not stem.startswith(("paper/", "published/"))]
NAMES = [*STEMS, *VARIANTS]


def unstated(rows: list[PublishedField]) -> list[str]:
    return [row.field for row in rows if row.state == "unstated"]


@pytest.mark.parametrize("name", NAMES)
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


@pytest.mark.parametrize("name", NAMES)
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
        assert all(matching(NAMES, pattern) for pattern in facts["configs"]), facts["configs"]
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
