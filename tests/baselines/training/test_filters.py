"""Groups without variance: dropped, refilled, counted; pass rates, and the problems they choose."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from flowzoo.agents import PolicyMap
from flowzoo.agents.problems import ProblemStream, distinct_problems, indices_from
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout, RolloutBatch
from flowzoo.agents.rollout.joint import JointRollout
from flowzoo.agents.rollout.settings import JointSettings, TreeSettings
from flowzoo.agents.rollout.tree import TreeRollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.baselines.advantages.compute import RunningMean
from flowzoo.baselines.advantages.spec import PRESETS
from flowzoo.baselines.learner.config import LearnerConfig, LossConfig
from flowzoo.baselines.training.advantage_computer import (
    AdvantageComputer,
    FilteredBatch,
    LengthShaping,
    gather,
    informative_jobs,
    job_of,
    problems_needed,
    trained_rows,
)
from flowzoo.baselines.training.curriculum import Curriculum, Stage, read_stages
from flowzoo.baselines.training.difficulty import (
    histogram,
    measure,
    read_rates,
    training_indices,
    within,
)
from flowzoo.cli import main
from flowzoo.envs import EpisodeRecord, make_workflow
from flowzoo.errors import UsageError
from tests.baselines.rows import new_call

WORKFLOW = make_workflow("voting_v0", "math")
TASK = WORKFLOW.task


class Player:
    """Plays with a scripted policy and remembers the jobs."""

    def __init__(self, skill: float) -> None:
        policy = ScriptedPolicy(WORKFLOW, skill)
        self.rollout = Rollout(WORKFLOW, PolicyMap.shared(policy, WORKFLOW.role_counts()))
        self.rounds: list[list[EpisodeJob]] = []

    def __call__(self, jobs: Sequence[EpisodeJob]) -> RolloutBatch:
        self.rounds.append(list(jobs))
        return with_tokens(self.rollout.sample(jobs))


def with_tokens(played: RolloutBatch) -> RolloutBatch:
    """What was played as if a model had played it."""
    rows = [replace(row, policy="shared", output_ids=(1, 2)) for row in played.rows]
    return replace(played, rows=rows)


def informative(
    played: RolloutBatch, algorithm: str = "grpo", state: RunningMean | None = None, **settings: Any
) -> set[str]:
    """The jobs that the algorithm's advantages say something about."""
    values = AdvantageComputer(PRESETS[algorithm])(played, state or RunningMean()).values
    return informative_jobs(played.rows, values, {"shared": LearnerConfig(**settings)})


def collect(skill: float, place: int = 0, problems: int = 6, refills: int = 0):
    player, stream = Player(skill), ProblemStream("train", 3, cursor=place)
    found = gather(
        stream, TASK, player, refills=refills, problems=problems, samples=4,
        informative=informative,
    )  # fmt: skip
    return found, player, stream


def test_kept_groups_are_whole_and_vary():
    found, player, stream = collect(0.8, refills=20)
    played = [job.problem.id for jobs in player.rounds for job in jobs]
    assert found.counts["filter/drawn"] == len(played) / 4 == stream.cursor
    assert found.counts["filter/refills"] == len(player.rounds) - 1 > 0
    assert found.counts["filter/kept"] == 6
    assert found.counts["filter/dropped"] > 0
    assert found.counts["filter/capped"] == 0
    assert len(found.trained_jobs) == 24
    assert len(found.sampled.records) == len(played)  # statistics see everything
    groups: dict[int, list[EpisodeRecord]] = {}
    for number, record in enumerate(found.sampled.records):
        groups.setdefault(number // 4, []).append(record)
    for group in groups.values():
        inside = [job_of(record.episode) in found.trained_jobs for record in group]
        assert len(set(inside)) == 1
        assert inside[0] <= (len({record.score for record in group}) > 1)
    trained = [row for row in found.sampled.rows if found.trains(row)]
    assert len(trained) == 6 * 4 * 4
    total = sum(found.counts[f"filter/{name}"] for name in ("kept", "dropped", "surplus"))
    assert total == found.counts["filter/drawn"]


def test_the_cap_ends_it_and_is_reported():
    found, player, _ = collect(1.0, refills=2)
    assert len(player.rounds) == 3
    assert found.trained_jobs == frozenset()
    assert found.counts["filter/capped"] == 1
    assert found.counts["filter/dropped"] == found.counts["filter/drawn"] == 18


def test_without_the_filter_nothing_is_dropped_and_the_stream_is_the_old_one():
    found, player, stream = collect(1.0)
    assert len(player.rounds) == 1
    assert found.trained_jobs == {record.episode for record in found.sampled.records}
    assert found.counts["filter/dropped"] == 0
    drawn = [job.problem.index for job in player.rounds[0][::4]]
    assert drawn == indices_from(None, 3, 0, 6)
    drawn = [problem.index for problem in stream.take(TASK, 6)]
    assert drawn == indices_from(None, 3, 6, 6)


def test_a_step_repeats_from_its_cursor():
    first, _, stream = collect(0.8, refills=10)
    second, _, _ = collect(0.8, place=stream.cursor, refills=10)
    again, _, _ = collect(0.8, place=stream.cursor, refills=10)
    assert again == second
    assert not {r.problem for r in first.sampled.records} & {
        r.problem for r in second.sampled.records
    }


def test_a_problem_drawn_twice_in_a_step_makes_two_groups():
    stream = ProblemStream("train", 0, only=[7])
    found = gather(
        stream, TASK, Player(0.5), refills=0, problems=3, samples=4, informative=informative
    )
    assert len({record.episode for record in found.sampled.records}) == 12
    assert {record.problem for record in found.sampled.records} == {TASK.problem(7, "train").id}


def test_a_problem_drawn_again_in_a_refill_makes_another_group():
    player, stream = Player(0.8), ProblemStream("train", 0, only=[7])
    found = gather(stream, TASK, player, refills=9, problems=3, samples=4, informative=informative)
    assert len(player.rounds) > 1
    episodes = [record.episode for record in found.sampled.records]
    assert len(set(episodes)) == len(episodes) == 4 * found.counts["filter/drawn"]


def batch(*rows: dict[str, Any]) -> RolloutBatch:
    """One call an episode; `score` is its episode's."""
    calls, records = [], []
    for number, row in enumerate(rows):
        changes = {"score": 0.0, "problem": "p", **row}
        score, key = changes.pop("score"), f"{changes['problem']}#{number}"
        usual = {"policy": "shared", "output_ids": (1,), "reward": score, "parts": {"team": score}}
        call = new_call(episode=key, **usual | changes)
        calls.append(call)
        records.append(
            EpisodeRecord("w", "t", call.problem, key, "", "", score, None, False, {}, {}, (call,))
        )
    return RolloutBatch(records, calls)


ALIKE = [{"score": 1.0}, {"score": 1.0}]
DIFFERENT = [{"score": 0.0}, {"score": 1.0}]


def test_a_group_is_of_use_where_its_algorithm_has_an_advantage():
    """The rewards of roles are not asked: the algorithm may judge by something else."""
    own = [{"reward": 0.0}, {"reward": 1.0}]  # of the calls; the episodes came out alike
    assert informative(batch(*own)) == set()
    assert informative(batch(*own), "dr_mas") == {"p#0", "p#1"}
    assert informative(batch(*DIFFERENT)) == {"p#0", "p#1"}
    # `rloo` compares with the others; `reinforce` with nothing: only a failure has no advantage.
    assert informative(batch(*ALIKE), "rloo") == set()
    assert informative(batch(*ALIKE), "reinforce") == {"p#0", "p#1"}
    assert informative(batch(*DIFFERENT), "reinforce") == {"p#1"}


def test_over_a_batch_a_problem_is_of_use_by_what_the_others_came_to():
    other = [{"score": 0.0, "problem": "q"}, {"score": 0.0, "problem": "q"}]
    assert informative(batch(*ALIKE), "reinforce_pp") == set()
    assert informative(batch(*ALIKE, *other), "reinforce_pp") == {"p#0", "p#1", "q#2", "q#3"}


@pytest.mark.parametrize(
    ("settings", "rows", "found"),
    [
        ({}, [{"finish": "length"}, {"score": 1.0, "finish": "length"}], set()),
        ({}, [{"finish": "length"}, {"score": 1.0}], {"p#1"}),
        ({"truncated": "train"}, [{"finish": "length"}, {"score": 1.0}], {"p#0", "p#1"}),
        ({"truncated": "penalize"}, [{"finish": "length"}, {}], {"p#0"}),
        ({}, [{"output_ids": ()}, {"score": 1.0}], {"p#1"}),
        ({"role_weights": {"a": 0.0}}, DIFFERENT, set()),
        ({"loss": LossConfig(kl_coef=0.1)}, ALIKE, set()),
    ],
)
def test_what_the_loss_leaves_out_does_not_count(settings, rows, found):
    assert informative(batch(*rows), **settings) == found


def test_rows_of_a_policy_that_is_not_trained_do_not_count():
    frozen = [{**row, "policy": "judge"} for row in DIFFERENT]
    assert informative(batch(*frozen)) == set()


def test_a_group_that_was_cut_off_throughout_is_refilled():
    """The outcomes differ, and no row would be trained."""

    class CutOff(Player):
        def __call__(self, jobs):
            played = super().__call__(jobs)
            rows = played.rows
            if len(self.rounds) == 1:
                rows = [replace(row, finish="length") for row in rows]
            return replace(played, rows=rows)

    player = CutOff(0.6)
    found = gather(
        ProblemStream("train", 3), TASK, player, refills=1, problems=3, samples=4,
        informative=informative,
    )  # fmt: skip
    first = {job.key for job in player.rounds[0]}
    assert len({record.score for record in found.sampled.records[:12]}) == 2
    assert found.counts["filter/dropped"] >= 3
    assert found.trained_jobs
    assert not found.trained_jobs & first


def test_a_running_mean_is_not_moved_by_the_question():
    state = RunningMean()
    state.load_state_dict({"columns": ["role"], "means": [[["a"], 0.25]]})
    before = state.state_dict()
    judge = AdvantageComputer(PRESETS["reinforce_role"])
    assert judge(batch(*ALIKE), state.copy()).values.tolist() == [0.75, 0.75]
    assert state.state_dict() == before
    judge(batch(*ALIKE), state)
    assert state.state_dict() != before


def test_length_shaping_is_that_of_the_paper():
    """DAPO, eq. 13, with 100 tokens at most and a cache of 20: by hand."""
    lengths = {0: 0.0, 80: 0.0, 81: -0.05, 85: -0.25, 90: -0.5, 99: -0.95, 100: -1.0}
    rows = [{"output_ids": (1,) * length} for length in lengths]
    played = batch(*rows)
    for cache in (0, 20):  # a fifth is the default
        shaping = LengthShaping({"a": 100}, cache)
        assert shaping.of(played.rows).tolist() == pytest.approx(list(lengths.values()))
    half = LengthShaping({"a": 1000, "a_0": 100}, 20, penalty=0.5)
    assert half.of(played.rows).tolist() == pytest.approx([v / 2 for v in lengths.values()])
    judged = AdvantageComputer(PRESETS["dr_grpo"], LengthShaping({"a": 100}))(
        played, RunningMean()
    ).values
    mean = sum(lengths.values()) / 7
    assert judged.tolist() == pytest.approx([value - mean for value in lengths.values()])
    with pytest.raises(UsageError, match="length_cache"):
        LengthShaping({"a": 100, "b": 10}, 20)


def test_as_many_are_drawn_as_are_likely_to_be_needed():
    assert problems_needed(4, 0, 16, 16) == 16
    assert problems_needed(4, 8, 16, 16) == 8
    assert problems_needed(4, 16, 16, 16) == 4
    assert problems_needed(15, 1, 16, 16) == 16


def test_mistakes_are_refused():
    with pytest.raises(UsageError, match="no problem left"):
        ProblemStream("train", 0, only=[])
    with pytest.raises(UsageError, match="cursor"):
        ProblemStream("train", 0, cursor=-1)


@pytest.mark.parametrize("kind", ["tree", "joint"])
def test_candidates_that_differ_are_kept_where_all_episodes_fail(kind):
    workflow = make_workflow("voting_v0", "math", credit="mix")
    policy_map = PolicyMap.shared(ScriptedPolicy(workflow, 0.5), workflow.role_counts())
    sampler = (
        TreeRollout(workflow, policy_map, TreeSettings(candidates=3, value="rollout"))
        if kind == "tree"
        else JointRollout(workflow, policy_map, JointSettings(candidates=2, leaves=4))
    )
    algorithm = "at_grpo" if kind == "tree" else "magrpo_tree"
    found = gather(
        ProblemStream("train", 1), TASK, lambda jobs: with_tokens(sampler.sample(jobs)),
        refills=10, problems=4, samples=1,
        informative=lambda played: informative(played, algorithm),
    )  # fmt: skip
    assert found.counts["filter/kept"] == 4
    rows = [row for row in found.sampled.rows if found.trains(row)]
    assert {job_of(row.episode) for row in rows} == found.trained_jobs
    assert len({row.problem for row in rows}) == 4
    for problem in {row.problem for row in rows}:
        nodes: dict[str, set[float | None]] = {}
        for row in rows:
            if row.problem == problem:
                nodes.setdefault(row.node, set()).add(row.value)
        assert any(len(values) > 1 for values in nodes.values())


def test_the_lowest_groups_of_every_policy_are_not_trained_on():
    # Groups of (problem, role); means of policy x: .5, 0, .5, 1, of policy y: 3, 2, 1.
    scores = {
        ("x", "a", "p"): (1, 0), ("x", "a", "q"): (0, 0), ("x", "b", "p"): (0.5, 0.5),
        ("x", "a", "r"): (1, 1), ("y", "c", "p"): (3, 3), ("y", "c", "q"): (1, 3),
        ("y", "c", "r"): (1, 1), ("z", "d", "p"): (0, 0),
    }  # fmt: skip
    rows = [
        {"policy": policy, "role": role, "agent": f"{role}_0", "problem": problem, "score": score}
        for (policy, role, problem), pair in scores.items()
        for score in pair
    ]
    sampled = batch(*rows)
    everything = FilteredBatch(sampled, frozenset(job_of(row.episode) for row in sampled.rows), {})

    def dropped(share: float, found: FilteredBatch = everything) -> set[tuple[str, str]]:
        trained = trained_rows(found, PRESETS["dr_mas"], ("x", "y"), share)
        assert trained.count(False) % 2 == 0, "groups are whole"
        pairs = zip(sampled.rows, trained, strict=True)
        return {(call.role, call.problem) for call, used in pairs if not used}

    assert dropped(0.0) == set()
    # Half of 4 groups, the first of equal ones; half of 3 is rounded down; z is not trained.
    assert dropped(0.5) == {("a", "q"), ("a", "p"), ("c", "r")}
    assert dropped(0.75) == {("a", "q"), ("a", "p"), ("b", "p"), ("c", "r"), ("c", "q")}
    # What a refill leaves out is no group any more.
    kept = {key for key in everything.trained_jobs if not key.startswith("q#")}
    assert dropped(0.5, everything._replace(trained_jobs=frozenset(kept))) == {
        ("a", "q"), ("c", "q"), ("a", "p"), ("c", "r"),
    }  # fmt: skip


MEASURED = make_workflow("single_v0", "math", level=2)
PROBLEMS = distinct_problems(MEASURED.task, "train", 80)


def policy_map() -> PolicyMap:
    return PolicyMap.shared(ScriptedPolicy(MEASURED, 0.5), MEASURED.role_counts())


def test_a_killed_measurement_goes_on_and_gives_the_same_rates(tmp_path):
    whole, torn = tmp_path / "whole.jsonl", tmp_path / "torn.jsonl"
    rates = measure(MEASURED, policy_map(), PROBLEMS, whole, samples=4)
    assert [rate.problem for rate in rates] == [problem.id for problem in PROBLEMS]
    assert {rate.rate for rate in rates} == {0.0, 0.25, 0.5, 0.75, 1.0}
    lines = whole.read_text().splitlines(keepends=True)
    torn.write_text("".join(lines[:40]) + lines[40][:20])
    played = []
    again = measure(MEASURED, policy_map(), PROBLEMS, torn, samples=4, on_episode=played.append)
    assert again == rates
    assert len(played) == 4 * (80 - 39)
    assert torn.read_text() == whole.read_text()
    assert measure(MEASURED, policy_map(), PROBLEMS, torn, samples=4) == rates
    with pytest.raises(UsageError, match=r"measured otherwise \(samples\)"):
        measure(MEASURED, policy_map(), PROBLEMS, torn, samples=5)


def test_training_draws_only_what_is_within_the_bounds(tmp_path):
    path = tmp_path / "rates.jsonl"
    rates = measure(MEASURED, policy_map(), PROBLEMS, path, samples=4)
    indices = training_indices(path, MEASURED.task, "train", 0.2, 0.8)
    assert indices == sorted(rate.index for rate in rates if 0.2 <= rate.rate <= 0.8)
    assert 0 < len(indices) < 80
    stream = ProblemStream("train", 0, only=indices)
    epoch = [problem.index for problem in stream.take(MEASURED.task, len(indices))]
    assert sorted(epoch) == indices
    assert epoch != indices
    assert sum(histogram(rates)) == 80
    assert histogram(rates)[9] == sum(rate.rate == 1.0 for rate in rates)


def test_rates_of_other_problems_are_refused(tmp_path):
    path = tmp_path / "rates.jsonl"
    measure(MEASURED, policy_map(), PROBLEMS[:30], path, samples=4)
    with pytest.raises(UsageError, match="split 'train', and the training has split 'test'"):
        training_indices(path, MEASURED.task, "test", 0, 1)
    other = make_workflow("single_v0", "math", level=2, seed=1).task
    with pytest.raises(UsageError, match="same data, seed and level"):
        training_indices(path, other, "train", 0, 1)
    with pytest.raises(UsageError, match="none of the 30 problems"):
        training_indices(path, MEASURED.task, "train", 0.3, 0.4)
    with pytest.raises(UsageError, match="make them with `flowzoo filter`"):
        training_indices(tmp_path / "none", MEASURED.task, "train", 0, 1)
    with pytest.raises(UsageError, match="0 <= low <= high <= 1"):
        within([], 0.9, 0.1)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[1].replace('"text": "', '"text": "0'))
    with pytest.raises(UsageError, match="is not problem"):
        training_indices(path, MEASURED.task, "train", 0, 1)


def test_the_command_measures_and_resumes(tmp_path, capsys):
    path = tmp_path / "deep" / "rates.jsonl"
    words = ["filter", "single", "--policy", "scripted:0.5", "--n", "20", "--samples", "4",
             "--out", str(path), "--low", "0.2", "--high", "0.8"]  # fmt: skip
    assert main(words) == 0
    first = capsys.readouterr().out
    protocol, rates = read_rates(path)
    assert (protocol["split"], protocol["samples"], len(rates)) == ("train", 4, 20)
    assert first.splitlines()[-1].startswith(f"{len(within(rates, 0.2, 0.8))}/20 problems")
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[0])
    assert found["problems"] == 20
    assert main([*words, "--low", "0.9"]) == 2
    path.write_text('{"of": "another kind"}\n')
    capsys.readouterr()
    assert main(words) == 2
    assert "has no pass rates: name another file" in capsys.readouterr().err
    assert path.read_text() == '{"of": "another kind"}\n'


def test_a_curriculum_changes_the_task_from_its_steps_on():
    curriculum = Curriculum(MEASURED, read_stages(["3:level=1-3", "5:level=4"]))
    levels = [curriculum.at(step).task.level for step in range(1, 7)]
    assert levels == [2, 2, "1-3", "1-3", 4, 4]
    assert curriculum.metrics(1) == {"curriculum/stage": 0.0}
    assert curriculum.metrics(3) == {"curriculum/stage": 1.0}
    assert curriculum.metrics(6) == {"curriculum/stage": 2.0, "curriculum/level": 4.0}
    assert curriculum.at(6).task.problem(0).id != MEASURED.task.problem(0).id
    assert Curriculum(MEASURED, ()).at(9) is MEASURED
    assert Curriculum(MEASURED, ()).metrics(9) == {}


def test_a_wrong_curriculum_shows_at_once(tmp_path):
    for word in ("level=2", "0:level=2", "x:level=2", "5"):
        with pytest.raises(UsageError, match="STEP:NAME=VALUE"):
            read_stages([word])
    with pytest.raises(UsageError, match="in order"):
        read_stages(["5:level=2", "3:level=1"])
    with pytest.raises(UsageError, match=r"level 9:"):
        Curriculum(MEASURED, [Stage(2, "level", 9)])
    with pytest.raises(UsageError, match="unknown setting of task 'math' 'levle'"):
        Curriculum(MEASURED, [Stage(2, "levle", 1)])
    file = tmp_path / "rows.jsonl"
    file.write_text('{"problem": "1+1", "answer": "2"}\n')
    on_file = make_workflow("single_v0", "math", data=str(file))
    with pytest.raises(UsageError, match="come from a file"):
        Curriculum(on_file, [Stage(2, "level", 1)])
