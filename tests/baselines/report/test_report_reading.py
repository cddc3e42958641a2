import json
from dataclasses import replace

import pytest

from flowzoo.agents.evaluation.evaluate import EvaluationDirectory
from flowzoo.baselines.report.reading import find_evaluations, find_runs, read_runs
from flowzoo.baselines.run.reading import read_episodes, sharing_words
from flowzoo.errors import DataError, UsageError


def test_runs_are_found_below_a_matrix_and_named_by_what_tells_them_apart(make_run, tmp_path):
    for seed in (1, 0):
        make_run(tmp_path / "m" / "cell" / f"seed-{seed}", seed=seed, items=8)
    runs = read_runs([tmp_path / "m"])
    assert [run.name for run in runs] == ["seed-0", "seed-1"]
    make_run(tmp_path / "m" / "other" / "seed-0", items=8)
    names = [run.name for run in read_runs([tmp_path / "m"])]
    assert names == ["cell/seed-0", "cell/seed-1", "other/seed-0"]


def test_a_run_given_twice_is_read_once(make_run, tmp_path):
    folder = make_run(tmp_path / "run", items=8)
    assert find_runs([folder, tmp_path]) == [folder]


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no run was found.*run\.json"):
        find_runs([tmp_path])
    with pytest.raises(UsageError, match="expected the directory of a run"):
        find_runs([tmp_path / "absent"])


def test_evaluations_among_runs_are_left_out_and_found(make_run, tmp_path):
    run = make_run(tmp_path / "run", items=8)
    evaluation = tmp_path / "evaluation"
    EvaluationDirectory(evaluation, {"n": 3}).save_summary({})
    assert find_runs([tmp_path]) == [run]
    assert find_evaluations([tmp_path]) == [evaluation]
    with pytest.raises(UsageError, match=r"holds an evaluation .*alone writes its page"):
        find_runs([run, evaluation])
    with pytest.raises(UsageError, match="holds no evaluation, but something else"):
        EvaluationDirectory(run, {"n": 3})


def test_a_record_that_is_not_of_a_run_is_named(make_run, tmp_path):
    folder = make_run(tmp_path / "run", items=8)
    (folder / "run.json").write_text('{"other": 1}')
    with pytest.raises(DataError, match=r"run\.json has no `settings`"):
        read_runs([folder])
    (folder / "run.json").write_text("{")
    with pytest.raises(DataError, match=r"run\.json is not JSON"):
        read_runs([folder])


def test_a_torn_last_line_is_dropped_and_an_earlier_one_is_named(make_run, tmp_path):
    folder = make_run(tmp_path / "run", items=8)
    metrics = folder / "metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text(whole + '{"step": 7')
    assert len(read_runs([folder])[0].rows) == len(whole.splitlines())
    metrics.write_text("[]\n" + whole)
    with pytest.raises(DataError, match="line 1: not a row of metrics"):
        read_runs([folder])


def test_roles_and_policies_of_an_unfinished_run(make_run, tmp_path):
    folder = make_run(tmp_path / "run", items=8, sharing=("isolated",), finished=False)
    run = read_runs([folder])[0]
    assert run.roles == ["generator", "aggregator"]
    assert run.policies == {"generator": "generator", "aggregator": "aggregator"}
    assert run.summary is None


def test_sharing_that_is_left_out_is_what_the_algorithm_is_made_for(make_run, tmp_path):
    plan = {"items": 8, "sharing": (), "finished": False}
    policies = {
        name: set(
            read_runs([make_run(tmp_path / name, algorithm=name, **plan)])[0].policies.values()
        )
        for name in ("grpo", "magrpo", "magrpo_tree")
    }
    alone = {"generator", "aggregator"}
    assert policies == {"grpo": {"shared"}, "magrpo": alone, "magrpo_tree": alone}
    settings = [{}, {"sharing": None, "algorithm": "of another version"}, {"sharing": ["a=b"]}]
    assert [sharing_words(one) for one in settings] == [["shared"], ["shared"], ["a=b"]]


def test_the_task_of_a_run_is_the_workflows_own_where_none_is_named(make_run, tmp_path):
    run = read_runs([make_run(tmp_path / "run", items=8)])[0]
    settings = {**run.settings, "task": None}
    assert replace(run, settings=settings).task == "math"
    foreign = {**settings, "workflow": "absent_module:Class"}
    assert replace(run, settings=foreign).task == "default task"


def test_problem_sets_are_known_by_name_or_by_their_problems(make_run, tmp_path):
    one, two = (
        read_runs([make_run(tmp_path / name, items=8, task=name)])[0] for name in ("math", "code")
    )
    assert one.problem_set
    assert one.problem_set != two.problem_set
    named = {"protocol": {"problem_set": "f94b3837a6ee"}}
    assert replace(one, summary=named).problem_set == "f94b3837a6ee"


def test_episodes_with_lone_surrogates_and_nul_are_read(make_run, tmp_path):
    text = "a\x00b\ud800c\u2028d"
    folder = make_run(tmp_path / "run", items=8, replies=(text,))
    episode = read_episodes(folder / "transcripts" / "eval-000000.jsonl")[0]
    assert episode["calls"][0]["reply"] == text
    assert json.loads(json.dumps(episode)) == episode
