"""Tree and joint sampling: what is sampled, valued and executed."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policies import Numbers

from flowzoo.agents import Completion, PolicyMap, Request
from flowzoo.agents.rollout.branches import Phase, fork_with_replies
from flowzoo.agents.rollout.engine import Response
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout, RolloutBatch
from flowzoo.agents.rollout.joint import JointRollout, joint_actions, split_budget
from flowzoo.agents.rollout.settings import JointSettings, TreeSettings
from flowzoo.agents.rollout.tree import TreeRollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.envs import (
    Ask,
    Episode,
    EpisodeRecord,
    GradeResult,
    InterimScore,
    Outcome,
    Problem,
    RoleScore,
    Workflow,
    WorkflowError,
    make_workflow,
)  # fmt: skip
from flowzoo.envs.episode.recording import state_hashes
from flowzoo.envs.tasks.math import MathTask
from flowzoo.errors import UsageError
from flowzoo.seeding import key_int


def value(text: str) -> float:
    return int(text) / 100


@dataclass(frozen=True)
class Chain(Workflow):
    """Two agents in turn; each sees all that was said and is worth the number it says."""

    name: ClassVar[str] = "chain_v0"
    roles: ClassVar[dict[str, int]] = {"first": 1, "second": 1}

    def play(self, problem):
        history = []
        for turn in range(4):
            agent = ("first_0", "second_0")[turn % 2]
            reply = yield Ask(agent, f"{problem.index}: {' '.join(history)}", str)
            history.append(reply.text)
            yield RoleScore(reply, value(reply.text))
        return Outcome(" ".join(history), value(history[-1]))


@dataclass(frozen=True)
class Hidden(Workflow):
    """Three writers at once; a standing that is the product of their numbers; then a judge."""

    name: ClassVar[str] = "hidden_v0"
    roles: ClassVar[dict[str, int]] = {"writer": 3, "judge": 1}

    def play(self, problem):
        texts = yield [Ask(f"writer_{n}", f"write {n}", str) for n in range(3)]
        worth = [value(reply.text) for reply in texts]
        yield InterimScore(worth[0] * worth[1] * worth[2])
        choice = yield Ask("judge_0", " ".join(reply.text for reply in texts), str)
        yield RoleScore(choice, value(choice.text))
        return Outcome(choice.text, worth[0])


@dataclass(frozen=True)
class Planned(Workflow):
    """A planner whose role score is known only after the worker has answered."""

    name: ClassVar[str] = "planned_v0"
    roles: ClassVar[dict[str, int]] = {"planner": 1, "worker": 1}

    def play(self, problem):
        plan = yield Ask("planner_0", "plan", str)
        work = yield Ask("worker_0", f"do {plan.text}", str)
        yield RoleScore(plan, value(plan.text))
        yield RoleScore(work, value(work.text))
        return Outcome(work.text, (value(plan.text) + value(work.text)) / 2)


TASK = MathTask()


def jobs(count: int = 3, samples: int = 2) -> list[EpisodeJob]:
    return [EpisodeJob(TASK.problem(i), s) for i in range(count) for s in range(samples)]


def grown(workflow: Workflow, policy: Any = None, count: int = 3, **settings: Any) -> RolloutBatch:
    policy_map = PolicyMap.shared(policy or Numbers(), workflow.roles)
    return TreeRollout(workflow, policy_map, TreeSettings(**settings), seed=5).sample(jobs(count))


def decisions(sampled: RolloutBatch) -> dict[str, list[Any]]:
    results: dict[str, list[Any]] = {}
    for row in sampled.rows:
        results.setdefault(row.node, []).append(row)
    return results


@pytest.mark.parametrize("candidates", [1, 3, 5])
def test_there_are_n_t_k_generations_in_as_many_batches_as_a_plain_rollout(candidates):
    policy, plain = Numbers(), Numbers()
    sampled = grown(Chain(TASK), policy, candidates=candidates)
    Rollout(Chain(TASK), PolicyMap.shared(plain, Chain.roles), seed=5).run(jobs())
    assert len(policy.requests) == 6 * 4 * candidates == len(sampled.rows)
    assert [len(batch) for batch in policy.batches] == [6 * candidates] * 4
    assert len(plain.batches) == 4
    assert (sampled.value_calls, sampled.value_tokens) == (0, 0)


def test_every_request_has_a_key_of_its_own_that_ends_with_its_candidate():
    policy = Numbers()
    grown(Hidden(TASK), policy, candidates=4)
    keys = Counter(request.key for request in policy.requests)
    assert set(keys.values()) == {1}
    assert Counter(key[-1] for key in keys) == dict.fromkeys(range(4), len(keys) // 4)
    assert all(batch == sorted(batch, key=lambda r: r.key) for batch in policy.batches)


@pytest.mark.parametrize("workflow", [Chain, Hidden])
def test_candidates_share_prompt_tokens_and_state_and_no_other_decision_does(workflow):
    sampled = grown(workflow(TASK), candidates=3)
    for rows in decisions(sampled).values():
        assert [row.candidate for row in rows] == [0, 1, 2]
        for field in ("messages", "prompt_ids", "state_hash", "episode", "agent", "turn", "policy"):
            assert len({repr(getattr(row, field)) for row in rows}) == 1
        assert sum(row.executed for row in rows) == 1
        assert len({row.reply for row in rows}) > 1
    places = [(row.episode, row.agent, row.turn) for row in sampled.rows]
    assert set(Counter(places).values()) == {3}
    assert len(decisions(sampled)) == len(set(places))


def test_episodes_and_problems_with_ids_that_look_alike_share_no_decision():
    problems = [Problem("math", "test", 0, 0, text, "1") for text in ("1", "11")]
    twins = [EpisodeJob(problem, sample) for problem in problems for sample in (1, 11)]
    twins = [*twins, EpisodeJob(Problem("math", "test", 0, 1, "x", "1"), 1)]
    policy_map = PolicyMap.shared(Numbers(), Chain.roles)
    named = {job.key: job for job in twins}
    sampled = TreeRollout(Chain(TASK), policy_map).sample(named.values())
    assert set(Counter(row.node for row in sampled.rows).values()) == {4}
    assert len(decisions(sampled)) == 4 * len(named)


def test_the_best_candidate_is_executed_and_the_next_prompt_descends_from_it():
    """The published bug: the next agent prompted from a stale branch."""
    sampled = grown(Chain(TASK), candidates=4)
    by_node = decisions(sampled)
    for record in sampled.records:
        history: list[str] = []
        for call in record.calls:
            rows = by_node[call.node]
            best = max(rows, key=lambda row: (value(row.reply), -row.candidate))
            assert (call.reply, call.candidate) == (best.reply, best.candidate)
            assert call.messages[0]["content"].partition(": ")[2] == " ".join(history)
            history.append(call.reply)
        assert record.answer == " ".join(history)


def test_the_state_of_a_prompt_is_that_of_its_parent_and_the_reply_that_was_executed():
    workflow = Chain(TASK)
    sampled = grown(workflow, candidates=3)
    for job, record in zip(jobs(), sampled.records, strict=True):
        replayed = Episode(workflow, job.problem, "again")
        for number, call in enumerate(record.calls):
            assert state_hashes(replayed, [number])[number] == call.state_hash
            replayed.reply(call.agent, call.reply)
        other = Episode(workflow, job.problem)
        stale = next(r for r in sampled.rows if r.node == record.calls[0].node and not r.executed)
        other.reply("first_0", stale.reply)
        assert state_hashes(other, [1])[1] != record.calls[1].state_hash


def test_the_value_of_every_agent_varies_with_its_own_reply_alone():
    sampled = grown(Chain(TASK), candidates=6, count=4)
    for rows in decisions(sampled).values():
        for row in rows:
            local_value = 0.2 + 0.8 * value(row.reply)
            # The last reply ends the episode, so that the team's share is known, too.
            team = value(row.reply) if row.phase == 3 else 0.0
            assert row.value == pytest.approx(local_value + team)


def test_ties_go_to_the_lowest_number():
    sampled = grown(Chain(TASK), Numbers(lambda request: "50"), candidates=4)
    assert {call.candidate for record in sampled.records for call in record.calls} == {0}


def test_first_and_sample_choose_without_looking_at_values():
    first = grown(Chain(TASK), candidates=4, select="first")
    assert {call.candidate for record in first.records for call in record.calls} == {0}
    drawn = grown(Chain(TASK), candidates=4, select="sample", count=20)
    chosen = Counter(call.candidate for record in drawn.records for call in record.calls)
    assert min(chosen[number] for number in range(4)) > 20
    assert drawn == grown(Chain(TASK), candidates=4, select="sample", count=20)


def test_records_are_finished_episodes_whose_calls_are_the_executed_rows():
    sampled = grown(Chain(TASK), candidates=3)
    executed = [row for row in sampled.rows if row.executed]
    assert executed == [call for record in sampled.records for call in record.calls]
    assert [record.episode for record in sampled.records] == [job.key for job in jobs()]
    for row in sampled.rows:
        assert (row.output_ids, row.logps, row.finish) == ((7, 8), (-0.5, -0.1), "stop")
        assert row.policy == "numbers"
        assert row.role_score == value(row.reply)
        assert row.parts["local"] == pytest.approx(0.2 + 0.8 * value(row.reply))
    json.dumps([record.to_json() for record in sampled.records])


def test_in_a_hidden_phase_candidates_meet_the_mates_first_ones_and_all_best_are_executed():
    sampled = grown(Hidden(TASK), candidates=4, count=6)
    by_node = decisions(sampled)
    mixed = 0
    for record in sampled.records:
        rows = [by_node[call.node] for call in record.calls[:3]]
        first = [value(candidates[0].reply) for candidates in rows]
        for slot, candidates in enumerate(rows):
            others = [worth for position, worth in enumerate(first) if position != slot]
            for row in candidates:
                assert row.value == pytest.approx(value(row.reply) * others[0] * others[1])
            best = max(candidates, key=lambda row: (row.value, -row.candidate))
            assert record.calls[slot].candidate == best.candidate
        chosen = [call.reply for call in record.calls[:3]]
        assert record.calls[3].messages[0]["content"] == " ".join(chosen)
        mixed += sum(call.candidate > 0 for call in record.calls[:3]) > 1
    assert mixed  # a combination that was not among the valued ones


def test_effects_of_all_branches_are_graded_together_and_a_taken_branch_not_again():
    sizes: list[int] = []

    @dataclass(frozen=True)
    class Watched(MathTask):
        def grade_batch(
            self, problems: Sequence[Problem], answers: Sequence[str | None]
        ) -> list[GradeResult]:
            sizes.append(len(answers))
            return super().grade_batch(problems, answers)

    workflow = make_workflow("single_v0", Watched())
    policy_map = PolicyMap.shared(ScriptedPolicy(workflow, 0.5), workflow.roles)
    TreeRollout(workflow, policy_map, TreeSettings(candidates=5)).sample(jobs(4))
    assert sizes == [8 * 5]


def test_a_role_without_an_immediate_reward_is_named_with_the_remedy():
    with pytest.raises(UsageError, match=r"role 'planner' in planned_v0.*value=\"rollout\""):
        grown(Planned(TASK))
    with pytest.raises(UsageError, match="a credit rule of your own"):
        grown(Chain(TASK, credit=lambda parts: parts["team"]))


def test_a_standing_from_before_the_reply_is_no_value_of_it():
    """The writer's candidates are told apart by it, the reviewer's all find the same one."""

    @dataclass(frozen=True)
    class Reviewed(Workflow):
        name: ClassVar[str] = "reviewed_v0"
        roles: ClassVar[dict[str, int]] = {"writer": 1, "reviewer": 1}

        def play(self, problem):
            draft = yield Ask("writer_0", "write", str)
            yield InterimScore(value(draft.text))
            yield Ask("reviewer_0", draft.text, str)
            final = yield Ask("writer_0", "again", str)
            return Outcome(final.text, value(final.text))

    with pytest.raises(UsageError, match="role 'reviewer' in reviewed_v0 cannot be valued at once"):
        grown(Reviewed(TASK))


def test_a_rollout_plays_every_candidate_to_its_end_and_counts_what_that_takes():
    policy = Numbers()
    workflow = Planned(TASK, credit="mix")
    sampled = grown(workflow, policy, candidates=3, value="rollout", value_rollouts=2, count=2)
    trained = 4 * 2 * 3
    # The planner's candidates need a worker each time; the worker's end the episode.
    assert sampled.value_calls == 4 * 3 * 2
    assert sampled.value_tokens == 2 * sampled.value_calls
    assert len(sampled.rows) == trained
    assert len(policy.requests) == trained + sampled.value_calls
    assert len({request.key for request in policy.requests}) == len(policy.requests)
    for rows in decisions(sampled).values():
        for row in rows:
            if row.role == "worker":
                plan = value(row.messages[0]["content"].removeprefix("do "))
                team = (plan + value(row.reply)) / 2
                assert row.value == pytest.approx(team + 0.2 + 0.8 * value(row.reply))
            else:
                work = [
                    value(str(key_int(*request.key) % 100))
                    for request in policy.requests
                    if "value" in request.key
                    and request.key[1:3] == (row.problem, int(row.episode.rpartition("#")[2]))
                    and request.key[-2] == row.candidate
                ]
                assert len(work) == 2
                team = (value(row.reply) + sum(work) / 2) / 2
                assert row.value == pytest.approx(team + 0.2 + 0.8 * value(row.reply))
    assert all(row.role_score is None for row in sampled.rows if not row.executed and not row.phase)


def test_value_rollouts_do_not_change_what_is_executed_first():
    """Their keys are their own: the candidates of the first phase are the same replies."""
    now = grown(Chain(TASK), candidates=3)
    later = grown(Chain(TASK), candidates=3, value="rollout")
    replies = [[r.reply for r in s.rows if r.phase == 0] for s in (now, later)]
    assert replies[0] == replies[1]


def test_the_teams_share_counts_only_if_every_candidate_knows_it():
    """Half of the candidates end the episode; the others do not know its score."""

    @dataclass(frozen=True)
    class Stops(Workflow):
        name: ClassVar[str] = "stops_v0"
        roles: ClassVar[dict[str, int]] = {"writer": 1}

        def play(self, problem):
            while True:
                reply = yield Ask("writer_0", "write", str)
                yield RoleScore(reply, value(reply.text))
                if int(reply.text) % 2:
                    return Outcome(reply.text, 1.0)

    sampled = grown(Stops(TASK), candidates=6)
    ends = Counter()
    for rows in decisions(sampled).values():
        odd = [int(row.reply) % 2 for row in rows]
        ends[all(odd), any(odd)] += 1
        for row in rows:
            assert row.value == pytest.approx(0.2 + 0.8 * value(row.reply) + all(odd))
    assert ends[False, True]


def test_local_credit_leaves_the_teams_share_out():
    for row in grown(Chain(TASK, credit="local"), candidates=3).rows:
        assert row.value == pytest.approx(0.2 + 0.8 * value(row.reply))


def test_branches_share_no_state_with_the_episode_or_with_each_other():
    episode = Episode(Hidden(TASK), TASK.problem(0), "e")
    answers = [[Response("p", Completion(text)) for text in ("10", "20")] for _ in range(3)]
    phase = Phase(episode.waiting, answers)
    item, two = (fork_with_replies(episode, phase, choice) for choice in ((0, 0, 0), (1, 0, 1)))
    assert (item.interim_score, two.interim_score) == (pytest.approx(0.001), pytest.approx(0.004))
    assert episode.interim_score is None
    assert (item.log, two.log, episode.log) == (["10"] * 3, ["20", "10", "20"], [])
    assert len(episode.waiting) == 3
    item.turns[0].messages[0]["content"] = "changed"
    assert two.turns[0].messages == episode.turns[0].messages
    assert episode.turns[0].messages[0]["content"] == "write 0"
    two.reply("judge_0", "7")
    assert (two.done, item.done, episode.done) == (True, False, False)


def test_the_format_penalty_counts_and_an_unreadable_reply_gets_no_team_share():
    @dataclass(frozen=True)
    class Picky(Workflow):
        name: ClassVar[str] = "picky_v0"
        roles: ClassVar[dict[str, int]] = {"writer": 1}

        def play(self, problem):
            reply = yield Ask("writer_0", "write", lambda text: text if int(text) > 50 else None)
            yield RoleScore(reply, 0.5)
            return Outcome(reply.text, 1.0)

    sampled = grown(Picky(TASK, format_penalty=0.3, alpha=2.0), candidates=4)
    seen = set()
    for row in sampled.rows:
        seen.add(row.strict)
        assert row.value == pytest.approx(2.0 + 0.2 + 0.4 if row.strict else 0.4 - 0.3)
    assert seen == {True, False}


@pytest.mark.parametrize("settings", [{}, {"value": "rollout", "value_rollouts": 2}])
@pytest.mark.parametrize("workflow", [Chain(TASK), Hidden(TASK)], ids=["chain", "hidden"])
def test_rows_do_not_depend_on_episodes_in_flight_or_arrival_order(workflow, settings):
    def rows(**options: Any) -> RolloutBatch:
        policy_map = PolicyMap.shared(Numbers(), workflow.roles)
        built = TreeSettings(candidates=3, **settings)
        return TreeRollout(workflow, policy_map, built, **options).sample(jobs(4))

    expected = rows(seed=5)
    assert rows(seed=5, in_flight=1) == expected
    assert rows(seed=5, in_flight=3, deterministic=False) == expected
    assert rows(seed=6) != expected


@dataclass(frozen=True)
class Fragile(Workflow):
    """Fails in the second phase on problem 1, in a branch that may not be the one executed."""

    name: ClassVar[str] = "fragile_v0"
    roles: ClassVar[dict[str, int]] = {"writer": 1}

    def play(self, problem):
        for turn in range(2):
            reply = yield Ask("writer_0", "write", str)
            yield RoleScore(reply, value(reply.text))
            if turn and problem.index == 1 and int(reply.text) % 3 == 0:
                raise ZeroDivisionError("odd")
        return Outcome(reply.text, 1.0)


@pytest.mark.parametrize("way", ["now", "rollout"])
def test_a_failing_branch_fails_its_job_and_no_other(way, tmp_path):
    policy_map = PolicyMap.shared(Numbers(), Fragile.roles)
    settings = TreeSettings(candidates=8, value=way)
    with pytest.raises(WorkflowError, match="ZeroDivisionError"):
        TreeRollout(Fragile(TASK), policy_map, settings).sample(jobs())
    sampler = TreeRollout(
        Fragile(TASK), policy_map, settings, on_error="count", failures=tmp_path / "failures.jsonl"
    )
    sampled = sampler.sample(jobs())
    remaining = [job.key for job in jobs() if job.problem.index != 1]
    assert [record.episode for record in sampled.records] == remaining
    assert sampler.failed == 2
    assert {row.episode for row in sampled.rows} == set(remaining)
    lines = (tmp_path / "failures.jsonl").read_text().splitlines()
    assert [json.loads(line)["episode"] for line in lines] == [
        job.key for job in jobs() if job.problem.index == 1
    ]


def test_a_policy_that_reads_one_prompt_in_two_ways_is_an_error():
    class Fickle(Numbers):
        async def generate(self, requests: Sequence[Request]) -> list[Completion]:
            return [Completion("5", (position,), (1,), (0.0,)) for position in range(len(requests))]

    with pytest.raises(UsageError, match="one prompt of first_0 into different tokens"):
        grown(Chain(TASK), Fickle())


def play_shipped(workflow: Workflow, count: int = 3, **settings: Any) -> RolloutBatch:
    """Every reply is right with probability 1/2."""
    policy_map = PolicyMap.shared(ScriptedPolicy(workflow, 0.5), workflow.role_counts())
    built = [EpisodeJob(workflow.task.problem(index)) for index in range(count)]
    return TreeRollout(workflow, policy_map, TreeSettings(**settings)).sample(built)


def varied_roles(sampled: RolloutBatch) -> set[str]:
    """Roles with candidates of one decision that differ in value."""
    by_node = decisions(sampled).values()
    return {row.role for rows in by_node for row in rows if row.value != rows[0].value}


NOW = (
    "single_v0", "voting_v0", "eval_opt_v0", "search_team_v0", "writing_pair_v0",
)  # fmt: skip


@pytest.mark.parametrize("name", NOW)
def test_shipped_workflows_have_immediate_values(name):
    workflow = make_workflow(name)
    sampled = play_shipped(workflow, 6, candidates=3)
    plain = play_shipped(workflow, 6, candidates=1)
    assert len(sampled.records) == 6
    assert all(len(rows) == 3 for rows in decisions(sampled).values())
    assert varied_roles(sampled) == set(workflow.roles)
    scores = [sum(record.score for record in batch.records) for batch in (sampled, plain)]
    assert scores[0] >= scores[1]


def test_the_orchestrator_needs_rollouts():
    workflow = make_workflow("orch_workers_v0")
    with pytest.raises(UsageError, match="role 'orchestrator' in orch_workers_v0"):
        play_shipped(workflow)
    sampled = play_shipped(workflow, candidates=2, value="rollout")
    assert {row.role for row in sampled.rows} == set(workflow.roles)
    assert sampled.value_calls > 0
    assert all(row.value == row.reward for row in sampled.rows if not row.executed)


# -- where programs are run ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("reasoner_tool_v0", "math"),
        ("coder_tester_v0", "code"),
        ("code_pair_v0", "code"),
        ("tool_planner_v0", "plan_path"),
    ],
)
def test_both_roles_are_valued_at_once_by_team_and_role_score(name, task):
    workflow = make_workflow(name, task, max_turns=2)
    sampled = play_shipped(workflow, candidates=3)
    for row in sampled.rows:
        if not row.executed:
            immediate = row.parts.get("local", 0.0) + row.parts.get("team", 0.0)
            assert row.value == pytest.approx(immediate)
            assert row.role_score is not None
    assert varied_roles(sampled) == set(workflow.roles)
    if name in ("coder_tester_v0", "tool_planner_v0"):  # those known early are those of the end
        last = "coder" if task == "code" else "planner"
        for record in sampled.records:
            assert all(call.role_score is not None for call in record.calls)
            scores = [call.role_score for call in record.calls if call.role == last]
            assert scores[-1] == record.score


def test_the_testers_teams_share_is_that_of_the_program_it_was_paired_with():
    """In a hidden phase the mate's first candidate is part of every value."""
    workflow = make_workflow("coder_tester_v0", "code", max_turns=1)
    by_node = decisions(play_shipped(workflow, 4))
    coders = {rows[0].problem: rows[0] for rows in by_node.values() if rows[0].role == "coder"}
    for rows in by_node.values():
        if rows[0].role == "tester":
            passed = coders[rows[0].problem].role_score
            assert {row.parts["team"] for row in rows if not row.executed} == {passed}


@dataclass(frozen=True)
class Pair(Workflow):
    """Two writers at once, `turns` times; the score is a function of all they said."""

    name: ClassVar[str] = "pair_v0"
    roles: ClassVar[dict[str, int]] = {"left": 1, "right": 1}
    turns: int = 1

    def play(self, problem):
        replies: list[int] = []
        for _ in range(self.turns):
            texts = yield [Ask(f"{side}_0", f"{replies}", str) for side in ("left", "right")]
            replies += [int(reply.text) for reply in texts]
            for reply in texts:
                yield RoleScore(reply, int(reply.text) / 100)
        return Outcome(str(replies), sum(replies) / (100 * len(replies)))


@dataclass(frozen=True)
class Line(Workflow):
    """One writer, three times."""

    name: ClassVar[str] = "line_v0"
    roles: ClassVar[dict[str, int]] = {"writer": 1}

    def play(self, problem):
        replies: list[int] = []
        for _ in range(3):
            reply = yield Ask("writer_0", f"{replies}", str)
            replies.append(int(reply.text))
        return Outcome(str(replies), (replies[0] * replies[1] * replies[2] % 101) / 100)


def jointly_grown(
    workflow: Workflow, policy: Any = None, count: int = 2, **settings: Any
) -> RolloutBatch:
    policy_map = PolicyMap.shared(policy or Numbers(), workflow.roles)
    jobs = [EpisodeJob(TASK.problem(index), 3) for index in range(count)]
    return JointRollout(workflow, policy_map, JointSettings(**settings), seed=5).sample(jobs)


def containing(sampled: RolloutBatch, row: Any) -> list[EpisodeRecord]:
    """The leaves in which a row was executed."""
    spot = (row.node, row.agent, row.candidate)
    return [
        record
        for record in sampled.records
        if spot in [(call.node, call.agent, call.candidate) for call in record.calls]
    ]


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 200), st.integers(0, 9))
def test_joint_actions_are_distinct_and_hold_every_candidate_equally_often(c, agents, most, seed):
    results = joint_actions(c, agents, most, ("test", seed))
    assert results[:c] == [(j,) * agents for j in range(c)]
    assert len(set(results)) == len(results) == max(1, min(most // c, c ** (agents - 1))) * c
    for slot in range(agents):
        counts = Counter(choice[slot] for choice in results)
        assert set(counts) == set(range(c))
        assert len(set(counts.values())) == 1


@given(st.integers(0, 100), st.integers(1, 20))
def test_shares_add_up_and_differ_by_one_at_most(budget, parts):
    results = split_budget(budget, parts)
    assert (len(results), sum(results)) == (parts, budget)
    assert max(results) - min(results) <= 1
    assert results == sorted(results, reverse=True)


def test_aligned_joins_the_jth_candidates():
    sampled = jointly_grown(Pair(TASK), candidates=3, leaves=3, count=1)
    chosen = [[call.candidate for call in record.calls] for record in sampled.records]
    assert chosen == [[0, 0], [1, 1], [2, 2]]
    assert len(sampled.rows) == 6
    for row in sampled.rows:
        (record,) = containing(sampled, row)
        assert row.value == pytest.approx(record.score)
    assert all(row.executed for row in sampled.rows)


def test_cross_averages_over_the_combinations_and_never_sums():
    """Published: the values of a candidate's combinations are summed."""
    sampled = jointly_grown(Pair(TASK), candidates=3, joint="cross", leaves=9, count=1)
    assert len(sampled.records) == 9
    assert len(sampled.rows) == 6
    replies = {(row.agent, row.candidate): int(row.reply) for row in sampled.rows}
    for row in sampled.rows:
        other = "right_0" if row.agent == "left_0" else "left_0"
        scores = [(int(row.reply) + replies[other, j]) / 200 for j in range(3)]
        assert row.value == pytest.approx(sum(scores) / 3)
    some = jointly_grown(Pair(TASK), candidates=3, joint="cross", leaves=6, count=1)
    assert len(some.records) == 6
    assert len({record.answer for record in some.records}) == 6


def test_a_nodes_value_is_the_mean_over_its_children():
    sampled = jointly_grown(Line(TASK), candidates=2, leaves=5, count=1)
    # 2 at the root with budgets 3 and 2; below them 2 each (2 + 1 and 1 + 1), then 2, 1, 1, 1.
    assert len(sampled.records) == 5
    scores = {record.episode.rpartition("/")[2]: record.score for record in sampled.records}
    assert sorted(scores) == ["0.0.0", "0.0.1", "0.1.0", "1.0.0", "1.1.0"]
    deep = (scores["0.0.0"] + scores["0.0.1"]) / 2
    expected = {
        ("", 0): (deep + scores["0.1.0"]) / 2,  # the mean of means, not of the three leaves
        ("", 1): (scores["1.0.0"] + scores["1.1.0"]) / 2,
        ("0", 0): deep,
        ("0", 1): scores["0.1.0"],
        ("1", 0): scores["1.0.0"],
        ("1", 1): scores["1.1.0"],
        ("0.0", 0): scores["0.0.0"],
        ("0.0", 1): scores["0.0.1"],
        ("0.1", 0): scores["0.1.0"],
        ("1.0", 0): scores["1.0.0"],
        ("1.1", 0): scores["1.1.0"],
    }
    results = {(row.node.rpartition("/")[2], row.candidate): row.value for row in sampled.rows}
    assert results == pytest.approx(expected)
    assert {row.node.rpartition("/")[0] for row in sampled.rows} == {f"{TASK.problem(0).id}#3"}


def test_local_rewards_of_later_calls_count_and_the_teams_share_once():
    sampled = jointly_grown(Pair(TASK, credit="mix", turns=2), candidates=2, leaves=2, count=3)
    first = 0
    for row in sampled.rows:
        (record,) = containing(sampled, row)
        selected = [call for call in record.calls if call.agent == row.agent]
        earned = sum(call.parts["local"] for call in selected if call.phase >= row.phase)
        assert row.value == pytest.approx(record.score + earned)
        first += row.phase == 0
    assert first == 12


def test_rows_of_a_node_share_prompt_and_state_and_stand_in_a_record():
    sampled = jointly_grown(Pair(TASK, turns=2), candidates=3, joint="cross", leaves=18)
    groups: dict[tuple[str, str], list[Any]] = {}
    for row in sampled.rows:
        groups.setdefault((row.node, row.agent), []).append(row)
    for rows in groups.values():
        assert [row.candidate for row in rows] == list(range(len(rows)))
        assert len({(str(row.messages), row.state_hash) for row in rows}) == 1
    records = {record.episode: record for record in sampled.records}
    assert len(records) == len(sampled.records)
    for row in sampled.rows:
        assert row in records[row.episode].calls
    for record in sampled.records:
        replies_by_spot = {(row.node, row.agent, row.candidate): row.reply for row in sampled.rows}
        for call in record.calls:
            assert replies_by_spot[call.node, call.agent, call.candidate] == call.reply
        replies = [int(call.reply) for call in record.calls]
        assert record.answer == str(replies)
        assert record.calls[2].messages[0]["content"] == str(replies[:2])


@pytest.mark.parametrize("leaves", [4, 7, 16, 64, 100])
def test_the_leaves_are_budgeted(leaves):
    policy = Numbers()
    sampled = jointly_grown(Line(TASK), policy, candidates=4, leaves=leaves, count=2)
    assert len(sampled.records) == 2 * min(leaves, 4**3)
    assert len(policy.batches) == 3  # as many as one episode takes
    requests = policy.requests
    assert len({request.key for request in requests}) == len(requests) == len(sampled.rows)
    assert len(sampled.rows) == 2 * (4 + min(leaves, 16) + min(leaves, 64))


def test_joint_rows_do_not_depend_on_episodes_in_flight_or_arrival_order():
    def rows(**options: Any) -> RolloutBatch:
        workflow = Pair(TASK, turns=2)
        policy_map = PolicyMap.shared(Numbers(), workflow.roles)
        settings = JointSettings(candidates=2, joint="cross", leaves=8)
        built = [EpisodeJob(TASK.problem(index)) for index in range(5)]
        return JointRollout(workflow, policy_map, settings, **options).sample(built)

    expected = rows(seed=5)
    assert rows(seed=5, in_flight=1) == expected
    assert rows(seed=5, deterministic=False) == expected
    assert rows(seed=6) != expected


@pytest.mark.parametrize("name", ["writing_pair_v0", "voting_v0", "eval_opt_v0", "orch_workers_v0"])
def test_shipped_workflows_grow_trees(name):
    workflow = make_workflow(name)
    policy_map = PolicyMap.shared(ScriptedPolicy(workflow, 0.5), workflow.role_counts())
    seen: list[str] = []
    sampler = JointRollout(
        workflow, policy_map, JointSettings(candidates=2, leaves=4),
        on_episode=lambda record: seen.append(record.episode),
    )  # fmt: skip
    sampled = sampler.sample([EpisodeJob(workflow.task.problem(index)) for index in range(3)])
    assert sorted(seen) == sorted(record.episode for record in sampled.records)
    assert 6 <= len(sampled.records) <= 12
    assert {row.role for row in sampled.rows} == set(workflow.roles)
    assert all(row.value is not None and 0 <= row.value <= 1 for row in sampled.rows)


def test_fewer_leaves_than_candidates_are_an_error():
    with pytest.raises(UsageError, match=r"`leaves` must be at least `candidates` \(4\)"):
        JointSettings(leaves=3)
