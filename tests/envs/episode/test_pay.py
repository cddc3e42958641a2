"""Pay of agents' own: `Payoffs` of a script, or role scores in an episode without a grade."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from flowzoo.agents.evaluation.evaluate import record_from_json
from flowzoo.agents.evaluation.summary import has_pay, role_pay, summarize
from flowzoo.envs import (
    Ask,
    EpisodeRecord,
    Grade,
    Outcome,
    Payoffs,
    ResetTask,
    RoleScore,
    Workflow,
    WorkflowError,
    make_workflow,
)
from tests.envs.playing import play_lists


@dataclass(frozen=True)
class Bid(Workflow):
    """Two bidders in two rounds, paid as `payoffs` says."""

    name: ClassVar[str] = "bid_v0"
    roles: ClassVar[dict[str, int]] = {"bidder": 2}
    default_task: ClassVar[str] = "flowzoo.envs:ResetTask"
    score_range: ClassVar[tuple[float, float]] = (-4.0, 4.0)
    payoffs: Any = None
    score: float | None = None

    def play(self, problem):
        for _ in range(2):
            yield [Ask(f"bidder_{i}", "Bid.", str.strip) for i in range(2)]
        return Outcome(score=self.score, payoffs=self.payoffs)


@dataclass(frozen=True)
class Scored(Workflow):
    """Role scores of two roles, and a grade if `graded`."""

    name: ClassVar[str] = "scored_v0"
    roles: ClassVar[dict[str, int]] = {"maker": 2, "seller": 1}
    graded: bool = False

    def play(self, problem):
        made = yield [Ask(f"maker_{i}", "Make.") for i in range(2)]
        sold = yield Ask("seller_0", "Sell.")
        for reply, value in zip([*made, sold], (0.0, 0.5, 1.0), strict=True):
            yield RoleScore(reply, value)
        if self.graded:
            yield Grade(sold.text)
        return Outcome(score=0.75)


def played(name: type[Workflow], **options: Any) -> EpisodeRecord:
    workflow = make_workflow(name, **options)
    turns = 2 if name is Bid else 1
    replies = {agent: ["x", "y"][:turns] for agent in workflow.agents}
    return play_lists(workflow, workflow.task.problem(0), replies)


def test_pay_may_be_negative_and_comes_with_the_last_call():
    payoffs = Payoffs({"bidder_0": -3.5, "bidder_1": 1.5})
    record = played(Bid, payoffs=payoffs, credit="local")
    assert record.pay == record.returns == {"bidder_0": -3.5, "bidder_1": 1.5}
    assert record.score == (-1.0 + 4) / 8  # the mean return on the workflow's scale
    assert [call.reward for call in record.calls] == [-3.5, 1.5, -3.5, 1.5]
    assert [call.immediate for call in record.calls] == [0.0, 0.0, -3.5, 1.5]
    team = played(Bid, payoffs=payoffs)
    assert team.pay == payoffs.returns
    assert {call.reward for call in team.calls} == {record.score}
    assert record_from_json(record.to_json()).pay == record.pay


def test_a_score_beside_pay_is_the_scripts():
    payoffs = Payoffs({"bidder_0": 100.0, "bidder_1": -2.0})
    assert played(Bid, payoffs=payoffs, score=4.0).score == 1.0


@pytest.mark.parametrize(
    ("payoffs", "fault"),
    [
        (Payoffs({"bidder_0": 1.0}), r"must name every agent \(bidder_0, bidder_1\), got bidder_0"),
        (Payoffs({}), r"must name every agent .* got none"),
        (Payoffs({"bidder_0": 1.0, "bidder_1": float("nan")}), "pay of bidder_1 must be a finite"),
        (Payoffs({"bidder_0": "2", "bidder_1": 0.0}), "pay of bidder_0 must be a finite number"),
        (Payoffs({"bidder_0": 9.0, "bidder_1": 9.0}), "from -4 to 4, got 9.0: declare"),
        ({"bidder_0": 1.0, "bidder_1": 1.0}, r"payoffs must be Payoffs\(\{agent: pay\}\), got"),
    ],
)
def test_impossible_pay_is_the_scripts_error(payoffs, fault):
    with pytest.raises(WorkflowError, match=fault) as caught:
        played(Bid, payoffs=payoffs)
    assert "bid_v0 (" in str(caught.value)
    assert "problem environment/train/0/0" in str(caught.value)


def test_role_scores_are_pay_where_nothing_is_graded():
    paid, truth = played(Scored), played(Scored, graded=True)
    assert paid.pay == {"maker_0": 0.0, "maker_1": 0.5, "seller_0": 1.0}
    assert truth.pay == {}
    assert role_pay([paid, paid]) == {"maker": [0.25], "seller": [1.0]}
    assert summarize([paid])["pay"] == {"maker": 0.25, "seller": 1.0}
    assert not has_pay([paid, truth])  # a script that grades at times says how good replies are
    assert "pay" not in summarize([paid, truth])
    assert not has_pay([played(Scored, graded=True)])


def test_a_game_needs_no_questions():
    task = make_workflow(Bid).task
    assert isinstance(task, ResetTask)
    first, other = task.problem(0), task.problem(1)
    assert (first.text, first.gold) != (other.text, "")
    assert first.gold == ""
    assert first.rng().random() != other.rng().random()
