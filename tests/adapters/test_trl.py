"""Workflows in TRL: a seat of its trainer, and rollouts for it."""

import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from policies import Replies

from flowzoo.adapters.outside import policies_of
from flowzoo.adapters.trl_spec import SeatError, TRLSpec, WorkflowToolSeat, workflow_reward
from flowzoo.adapters.trl_worker import TRLRolloutWorker
from flowzoo.agents import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.envs import Ask, EpisodeRecord, Grade, Outcome, Problem, Workflow, make_workflow
from flowzoo.envs.script import Script
from flowzoo.envs.tasks.task import get_problem
from flowzoo.errors import UsageError


@dataclass(frozen=True)
class Router(Workflow):
    """A router sends every second problem to a specialist, and answers the others itself."""

    name: ClassVar[str] = "router_v0"
    roles: ClassVar[Mapping[str, int]] = {"router": 1, "specialist": 1}
    again: str = ""
    """Role of a message that comes before the specialist's second prompt; empty: no second one."""

    def play(self, problem: Problem) -> Script:
        """Ask the router, and perhaps the specialist."""
        chat = [{"role": "user", "content": problem.text}]
        reply = yield Ask("router_0", chat, self.task.answer)
        if problem.index % 2:
            reply = yield Ask("specialist_0", chat, self.task.answer)
        if problem.index % 2 and self.again:
            more = [{"role": self.again, "content": "new"}, {"role": "user", "content": "Again."}]
            reply = yield Ask("specialist_0", more, self.task.answer)
        grade = yield Grade(reply.strict, of=reply)
        return Outcome(reply.strict, grade.score)


def spoken(replies: Sequence[str]) -> Replies:
    """A policy with a reply for each of its turns."""
    return Replies(lambda request: replies[int(request.key[4])], "spoken", "stream")


def ours(
    spec: TRLSpec, index: int, sample: int, replies: Sequence[str], agent: str = ""
) -> tuple[EpisodeRecord, list[str]]:
    """The same episode by a rollout, and the prompts that the agent saw in it."""
    workflow, policy = spec.workflow, spoken(replies)
    rest = ScriptedPolicy(workflow, 0.5, spec.seed)
    policy_map = PolicyMap(
        {**dict.fromkeys(workflow.role_counts(), rest), agent or spec.agents[0]: policy}
    )
    job = EpisodeJob(get_problem(workflow.task, index, spec.split), sample)
    (record,) = Rollout(workflow, policy_map, seed=spec.seed).run([job])
    return record, [request.messages[-1]["content"] for request in policy.requests]


def test_an_agent_asked_once_is_shown_and_paid_what_our_rollout_shows_and_pays():
    spec = TRLSpec("voting", "aggregator", others="scripted:0.5", seed=3)
    again: TRLSpec = pickle.loads(pickle.dumps(spec))
    seats = [spec.environment_factory() for _ in range(4)]
    rows = [{"prompt": [], "index": index, "sample": sample} for index, sample in
            ((0, 0), (0, 0), (0, 1), (7, 0))]  # fmt: skip
    output = [seat.reset(**row) for seat, row in zip(seats, rows, strict=True)]
    assert output[0] == output[1] == again.environment_factory().reset(**rows[0])
    assert output[0] != output[2]
    replies = ["A", "\\boxed{1}", "B", "<think>B</think> C"]
    logged: dict[str, float] = {}
    texts: list[Any] = [[{"role": "assistant", "content": reply}] for reply in replies]
    paid = workflow_reward(seats, texts, index=[], log_metric=logged.__setitem__)
    records = []
    for row, reply, prompt, results in zip(rows, replies, output, paid, strict=True):
        record, requested = ours(spec, row["index"], row["sample"], [reply])
        assert ([prompt], results) == (requested, record.returns["aggregator_0"])
        records.append(record)
    assert logged == {"workflow_score": sum(record.score for record in records) / 4}
    assert seats[0].reset(index=1) != output[0], "a seat is used again"


def test_turns_that_a_model_leaves_open_are_answered_with_nothing():
    spec = TRLSpec("eval_opt", "generator", others="scripted:0.5", turns="many", seed=1)
    paid, turns = [], []
    for index in range(4):
        seat = spec.environment_factory()
        assert isinstance(seat, WorkflowToolSeat)
        prompts = [seat.reset(index=index), seat.reply("\\boxed{0}")]
        call = {"role": "assistant", "content": "", "tool_calls": [{"type": "function"}]}
        (results,) = workflow_reward([seat], [[call, {"role": "tool", "content": prompts[1]}]])
        assert seat.reply("more") == "The episode is over."
        record, requested = ours(spec, index, 0, ["\\boxed{0}", *[""] * 9])
        over = ["The episode is over."] if len(requested) == 1 else []
        assert prompts == [*requested[:2], *over], "of a chat that goes on, the new message"
        assert results == record.returns["generator_0"]
        paid.append(results)
        turns.append(len(requested))
    assert max(turns) > 1


def test_a_chat_that_leaves_out_earlier_turns_is_handed_on():
    spec = TRLSpec("eval_opt", "generator", others="scripted:0.5", turns="many", seed=1)
    seat, replies = spec.environment_factory(), ["a", " b\n", "<think>no</think> c"]
    assert isinstance(seat, WorkflowToolSeat)
    output = [seat.reset(index=2), *map(seat.reply, replies[:2])]
    record, requested = ours(spec, 2, 0, replies)
    assert output == requested
    third = [call for call in record.calls if call.agent == "generator_0"][2].messages
    assert [message["content"] for message in third][1:-1] == ["b"], "the first turn is left out"
    assert seat.reply(replies[2]) == "The episode is over."
    assert workflow_reward([seat], [[{"role": "tool", "content": ""}]]) == [
        record.returns["generator_0"]
    ]


def test_what_cannot_be_handed_on_ends_the_run_and_is_no_result_of_a_tool():
    spec = TRLSpec(Router, "specialist", turns="many", again="assistant")
    seat = spec.environment_factory()
    assert isinstance(seat, WorkflowToolSeat)
    seat.reset(index=1)
    with pytest.raises(TypeError, match="`text` must be a string, got int"):
        seat.reply(3)  # type: ignore[arg-type] - as a model may call it
    with pytest.raises(SeatError, match=r"UsageError: specialist_0 was shown a chat \(assistant, "):
        seat.reply("\\boxed{0}")
    assert not issubclass(SeatError, Exception), "TRL hands those to the model"


def test_a_policy_of_the_others_that_fails_ends_the_run():
    def reply(request):
        if int(request.key[4]):
            raise ConnectionError("the server is gone")
        return "\\boxed{Incorrect}"

    others = {"evaluator": Replies(reply)}
    seat = TRLSpec("eval_opt", "generator", others=others, turns="many").environment_factory()
    assert isinstance(seat, WorkflowToolSeat)
    seat.reset(index=2)
    assert seat.reply("a").startswith("Review")
    with pytest.raises(SeatError, match="the server is gone"):
        seat.reply("b")


def test_rows_in_which_a_role_is_not_asked_are_left_out():
    spec = TRLSpec(Router, "specialist", problems=6)
    with pytest.warns(UserWarning, match="3 of 6 rows are left out: specialist_0 would not be"):
        rows = spec.rows
    assert {row["index"] % 2 for row in rows} == {1}
    seats = [spec.environment_factory(), spec.environment_factory()]
    assert seats[0].reset(index=2) is None
    assert seats[1].reset(**rows[0]) is not None
    logged: dict[str, float] = {}
    reply = [{"role": "assistant", "content": "\\boxed{0}"}]
    paid = workflow_reward(seats, [reply, reply], log_metric=logged.__setitem__)
    record, _ = ours(spec, rows[0]["index"], 0, ["\\boxed{0}"])
    assert paid == [None, record.returns["specialist_0"]], "TRL leaves None out of the group"
    assert logged == {"workflow_score": record.score}
    assert seats[0].reset(**rows[0]) is not None
    with pytest.raises(UsageError, match="specialist_0: asked in none of 1 episodes"):
        _ = TRLSpec(Router, "specialist", problems=1).rows


def test_a_role_of_several_agents_has_a_row_for_each():
    spec = TRLSpec("voting", "generator", others="scripted:0.5", problems=2, seed=3)
    rows = spec.rows
    agents = ["generator_0", "generator_1", "generator_2"]
    assert [row["agent"] for row in rows] == agents * 2
    seat = spec.environment_factory()
    for row in rows:
        assert seat.reset(**row) is not None
        (paid,) = workflow_reward([seat], ["\\boxed{1}"])
        record, _ = ours(spec, row["index"], 0, ["\\boxed{1}"], row["agent"])
        assert paid == record.returns[row["agent"]]
        assert seat._play.record is not None
        texts = {call.agent: call.reply for call in seat._play.record.calls}
        assert texts == {call.agent: call.reply for call in record.calls}
        assert texts[row["agent"]] == "\\boxed{1}"


def test_what_cannot_be_played_is_said():
    with pytest.raises(UsageError, match="unknown role or agent 'judge'"):
        TRLSpec("voting", "judge")
    with pytest.raises(UsageError, match="problems: expected a whole number of at least 1, got 0"):
        TRLSpec("voting", "aggregator", problems=0)
    spec = TRLSpec("voting", "generator_1")
    with pytest.raises(UsageError, match="generator_1 is answered from outside"):
        policies_of(spec.workflow, {"generator_1": "scripted:1"}, spec.agents)
    again = TRLSpec("eval_opt", "generator", others="scripted:0")
    for index in range(20):
        seat = again.environment_factory()
        seat.reset(index=index)
        try:
            workflow_reward([seat], ["\\boxed{0}"])
        except UsageError as error:
            assert 'use turns="many"' in str(error)  # noqa: PT017 - some episodes end at once
            return
    raise AssertionError("the generator was never asked again")


def test_tools_that_the_model_would_not_see_are_an_error():
    with pytest.raises(UsageError, match="reasoner_python_v0 offers tools to reasoner"):
        assert TRLSpec("reasoner_python", "reasoner", problems=1).rows


def test_another_layout_of_trl_is_said(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "trl"]:
        monkeypatch.delitem(sys.modules, name)
    package = tmp_path / "trl" / "experimental" / "async_grpo"
    package.mkdir(parents=True)
    (tmp_path / "trl" / "__init__.py").write_text('__version__ = "1.18.0"\n', "utf-8")
    (package / "__init__.py").write_text("", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    workflow = make_workflow("voting")
    with pytest.raises(UsageError, match=r"trl 1\.18\.0 has no .* pip install 'trl==1\.16\.0'"):
        TRLRolloutWorker(workflow, ScriptedPolicy(workflow, 1))
