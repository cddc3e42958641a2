"""Teams and lone agents of the studies: each conforms and shows what its comparison says."""

import math

import pytest

from flowzoo.agents import PolicyMap
from flowzoo.agents.evaluation.evaluate import evaluate
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.specs import make_policy
from flowzoo.baselines.matrix.file import load_matrix
from flowzoo.envs import EpisodeRecord, Workflow, make_workflow
from flowzoo.envs.testing import check_workflow
from studies.magnitude_more import growth
from studies.teams.code_explorers import CodeExplorers
from studies.teams.coder_alone import CoderAlone
from studies.teams.plan_explorers import PlanExplorers
from studies.teams.planner_alone import PlannerAlone
from studies.teams.readers import Readers
from studies.teams.searcher_alone import SearcherAlone

WORKFLOWS = (CodeExplorers, CoderAlone, PlanExplorers, PlannerAlone, Readers, SearcherAlone)


def played(workflow: Workflow, policy: str, count: int = 8) -> list[EpisodeRecord]:
    """Episodes of the workflow under a scripted policy."""
    policy_map = PolicyMap.shared(make_policy(policy, oracle=workflow), workflow.role_counts())
    problems = distinct_problems(workflow.task, "validation", count)
    return evaluate(workflow, policy_map, problems)[0]


@pytest.mark.full
@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_it_conforms(workflow):
    check_workflow(make_workflow(workflow))


def test_a_lone_planner_has_the_turns_of_the_team():
    workflow = make_workflow(PlannerAlone, "plan_path", side=4, max_turns=3)
    for record in played(workflow, "scripted:0"):
        assert record.facts["turns"] == len(record.calls) <= 3
        assert all("Grid" in call.messages[-1]["content"] for call in record.calls)
        assert record.facts["solved"] == (record.facts["end"] == "solved") == (record.score == 1)
    assert {record.score for record in played(workflow, "scripted:1")} == {1.0}


def test_a_lone_searcher_reads_what_its_searches_found():
    workflow = make_workflow(SearcherAlone, "search", level=1, top_k=1, searches=2)
    for record in played(workflow, "scripted:1"):
        searches, answer = record.calls[:2], record.calls[2]
        assert all("<search>" in call.reply for call in searches)
        assert answer.messages[-1]["content"].count("Search: ") == 2
        assert record.score == 1.0


@pytest.mark.parametrize(("apart", "passages"), [(True, 1), (False, 3)])
def test_readers_see_one_passage_or_all(apart, passages):
    workflow = make_workflow(Readers, "search", level=1, passages=3, apart=apart)
    for record in played(workflow, "scripted:1"):
        counts = [call.messages[-1]["content"].count("Search: ") for call in record.calls]
        assert counts == [passages] * 3
        assert record.score == float(record.facts["evidence"])


def test_execution_chooses_among_plans_and_programs():
    for workflow in (
        make_workflow(PlanExplorers, "plan_path", side=4, explorers=3),
        make_workflow(CodeExplorers, "code", level=1, explorers=3),
    ):
        for record in played(workflow, "scripted:0.5"):
            scores = [call.role_score == 1.0 for call in record.calls]
            assert record.score == float(any(scores))
            assert record.facts["needed"] == (scores.index(True) + 1 if any(scores) else 3)


def test_a_lone_coder_sees_the_tests_and_stops_when_they_pass():
    workflow = make_workflow(CoderAlone, "code", level=1, max_turns=2)
    for record in played(workflow, "scripted:0.5"):
        again = [call.messages[-1]["content"] for call in record.calls[1:]]
        assert all("public tests" in prompt for prompt in again)
        assert len(record.calls) == 1 or record.calls[0].role_score == 0.0


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (2.9, 3.2, "by N"),
        (3.2, 3.9, "by more than N"),
        (0.9, 1.1, "not at all"),
        (2.0, 2.8, "between sqrt(N) and N"),
        (1.5, 3.1, "undecided: by N or by sqrt(N)"),
    ],
)
def test_growth_is_named_by_what_its_interval_holds(low, high, words):
    assert growth(3, (0.0, math.log(low), math.log(high))) == words


def test_lone_agents_have_the_settings_of_the_map():
    cells = {cell.config.workflow: cell.config for cell in load_matrix("map").cells}
    for cell in load_matrix("studies/map_controls.toml").cells:
        config = cell.config
        same = cells["search_team" if cell.task == "search" else "tool_planner"]
        for name in ("problems", "samples", "lr", "max_tokens", "eval_problems", "algorithm"):
            assert getattr(config, name) == getattr(same, name), name
