"""Summaries: alarms, shares of roles, votes, pass@k, protocols."""

import itertools
import json
import math
import random
from dataclasses import replace
from typing import Any

import pytest

from flowzoo.agents import PolicyMap, Sampling
from flowzoo.agents.evaluation.alarms import (
    COVERED,
    Alarm,
    Remedies,
    episode_alarms,
    group_alarm,
    is_low,
    is_many,
    quote_reply,
    replies_of,
    reply_alarms,
    sufficient_length,
)
from flowzoo.agents.evaluation.evaluate import EvaluationDirectory, evaluate
from flowzoo.agents.evaluation.majority import read_summary, vote, votes_for
from flowzoo.agents.evaluation.protocol import (
    check_comparable,
    check_selection,
    protocol_line,
    protocol_of,
)
from flowzoo.agents.evaluation.summary import (
    Proportion,
    pass_at,
    role_shares,
    summarize,
)
from flowzoo.agents.policy_map import Lengths
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.envs import Call, EpisodeRecord, make_workflow
from flowzoo.errors import DataError, UsageError
from flowzoo.provenance import grader_digest
from tests.baselines.rows import new_call

TYPED = Remedies(warm_start="flowzoo sft voting --model M")


def make_call(role: str = "judge", tokens: int = 20, **changes: Any) -> Call:
    values = {"slot": 1, "reply": "Incorrect", "output_ids": (1,) * tokens, "logps": ()}
    return new_call(role, **values | changes)


def record(
    problem: int, sample: int = 0, score: float = 0.0, facts: Any = None, pay: Any = None
) -> EpisodeRecord:
    names, pay = ("w", "t", f"p{problem}", f"p{problem}#{sample}"), pay or {}
    return EpisodeRecord(*names, "", "", score, None, False, facts or {}, pay, pay=pay)


def alarms(calls: list[Call], remedies: Remedies = TYPED) -> list[Alarm]:
    return reply_alarms(replies_of(calls), remedies)


def test_few_cases_raise_no_alarm():
    assert [of for of in range(1, 12) if is_low(0, of)] == [8, 9, 10, 11]
    assert not is_low(1 / 12, 12)
    assert is_low(1 / 13, 13)
    assert not is_low(0.1, 10_000)
    assert [of for of in range(1, 10) if is_many(1, of)] == [8, 9]
    assert not is_many(2 / 8, 8)
    assert is_many(3 / 8, 8)
    assert not is_many(0.2, 10_000)
    assert not is_low(float("nan"), 0)
    assert alarms([]) == []


def test_a_role_that_nobody_reads_is_quoted_with_two_ways_out():
    calls = [make_call(strict=False) for _ in range(16)] + [make_call("solver")] * 16
    (alarm,) = alarms(calls)
    assert alarm == (
        "unread/judge",
        'judge: none of 16 replies could be read (strict), e.g. "Incorrect"; show worked examples '
        "(--examples 4) or warm up first (flowzoo sft voting --model M)",
    )
    (output,) = alarms(calls, Remedies((), True, "flowzoo sft voting"))
    assert output.text.endswith('"Incorrect"; warm up first (flowzoo sft voting)')
    (local,) = alarms(calls, Remedies())  # an environment of others has prompts of its own
    assert local.text.endswith('e.g. "Incorrect"')
    assert alarms([make_call(strict=False, finish="scripted")] * 16) == []


def test_what_is_cut_off_before_it_can_be_read_wants_length_first():
    calls = [make_call(strict=False, tokens=64, finish="length")] * 12
    cut, unread = alarms([*calls, make_call(strict=False, reply="It ended")])
    assert (cut.cause, unread.cause) == ("truncation/judge", "unread/judge")
    assert (
        'e.g. "It ended"; most were cut off before their end: longer replies first' in unread.text
    )


def test_the_length_that_would_do_and_what_to_type():
    ended = [make_call(tokens=tokens) for tokens in (150, 180, 200, 210, 215, 225, 235, 250)]
    cut = [make_call(tokens=256, finish="length") for _ in range(16)]
    (message,) = alarms([*ended, *cut])
    assert message.text.startswith(
        "judge: 67 % of 24 replies ran into the length limit of 256 tokens"
    )
    assert "(median 212), 544 would do for 95 %: --max-tokens 544" in message.text
    (local,) = alarms([*ended, *cut], Remedies(("judge=2048/256",)))
    assert local.text.endswith("--lengths judge=2048/544")
    (prompt,) = alarms([*ended, *cut], Remedies(("judge=2048",)))
    assert prompt.text.endswith("--max-tokens 544")


def test_where_the_length_cannot_be_known_it_is_not_made_up():
    cut = [make_call(tokens=256, finish="length") for _ in range(16)]
    (every,) = alarms(cut)
    assert "all 16 replies" in every.text
    assert "by how much is not known: try --max-tokens 512" in every.text
    # Short replies beside some that never end: no length would do.
    (loops,) = alarms([*cut, *(make_call(tokens=12) for _ in range(32))])
    assert "do not tell how long the others would be: try --max-tokens 512" in loops.text
    (uncounted,) = alarms([make_call(tokens=0, finish="length")] * 16)
    assert uncounted.text.endswith("ran into the length limit; raise --max-tokens")


@pytest.mark.parametrize(("middle", "spread"), [(300.0, 0.3), (200.0, 0.5), (150.0, 0.6)])
def test_the_estimate_is_that_of_lengths_whose_distribution_is_known(middle, spread):
    noise = random.Random(0)
    lengths = [math.ceil(middle * math.exp(spread * noise.gauss(0, 1))) for _ in range(4000)]
    limit = 256
    ended = [length for length in lengths if length < limit]
    tokens = sufficient_length(ended, limit, 1 - len(ended) / len(lengths))
    assert tokens is not None
    assert sum(length <= tokens for length in lengths) / len(lengths) == pytest.approx(
        COVERED, abs=0.03
    )


@pytest.mark.parametrize("truncated", [0.0, 1.0, 0.999])
def test_the_estimate_has_no_value_that_it_fails_at(truncated):
    for length in (1, 31, 32):
        assert sufficient_length([length] * 8, 32, truncated) in {None, 32, 64, 96, 128}


def test_a_quoted_reply_is_one_short_printable_line():
    assert quote_reply("a\n b\x1b[31m\u202ec") == '"a b\\x1b[31m\\u202ec"'
    long = quote_reply("x" * 500 + " the end")
    assert len(long) < 110
    assert long.endswith('the end"')
    assert quote_reply("  \n") == "an empty reply"
    assert quote_reply("\ud800") == '"\\ud800"'


def test_groups_that_agree():
    none = group_alarm(16, 16, 0.0, "do this")
    assert none is not None
    assert none.cause == "nothing"
    assert none.text == (
        "none of 16 groups has rewards that differ, and others teach nothing (mean 0.00); do this"
    )
    few = group_alarm(32, 30, 0.9, "do this")
    assert few is not None
    assert few.cause == "reward"
    assert few.text.startswith("2 of 32 groups have rewards that differ, and")
    assert group_alarm(4, 4, 0.0, "") is None
    assert group_alarm(0, 0, 0.0, "") is None
    assert group_alarm(16, 12, 0.5, "") is None


def test_episodes_of_a_problem_are_a_group():
    alike = [record(problem, sample, 0.0) for problem in range(10) for sample in range(2)]
    (alarm,) = episode_alarms(alike, TYPED)
    assert "an easier level (--options level=1), or more --samples" in alarm.text
    (alarm,) = episode_alarms(alike, Remedies(options=("level=1",)))
    assert "an easier level" not in alarm.text
    assert "a warm start" in alarm.text
    assert episode_alarms(alike[::2], TYPED) == []
    mixed = [record(problem, sample, sample) for problem in range(10) for sample in range(2)]
    assert episode_alarms(mixed, TYPED) == []


def test_groups_of_a_game_differ_by_pay():
    def played(problem: int, sample: int, pay: float) -> EpisodeRecord:
        return record(problem, sample, 0.5, pay={"one_0": pay, "other_0": -pay})

    alike = [played(problem, sample, 1.0) for problem in range(10) for sample in range(2)]
    (alarm,) = episode_alarms(alike, TYPED)
    assert alarm.text.endswith("to train, take more --samples")  # no game is easier or harder
    zero_sum = [played(problem, sample, sample) for problem in range(10) for sample in range(2)]
    assert episode_alarms(zero_sum, TYPED) == []  # one score, and two rewards


COUNTS = ("true_accept", "false_accept", "true_reject", "false_reject", "abstained")


def planted(*facts: dict[str, Any]) -> list[EpisodeRecord]:
    return [record(n, facts=item) for n, item in enumerate(facts)]


def verdicts(*counts: int) -> dict[str, Any]:
    return dict(zip(COUNTS, counts, strict=True))


def test_verdicts_are_weighed_by_call_and_not_by_episode():
    # One episode of one right verdict, one of four verdicts of which one is right.
    results = role_shares(planted(verdicts(1, 0, 0, 0, 0), verdicts(0, 1, 1, 2, 0)))
    assert results["evaluator_tpr"] == Proportion(1 / 3, 3)
    assert results["evaluator_tnr"] == Proportion(1 / 2, 2)
    assert results["evaluator_abstained"] == Proportion(0.0, 5)


def test_unreadable_verdicts_judge_nothing_and_are_counted():
    results = role_shares(planted(verdicts(1, 0, 0, 0, 2), verdicts(0, 0, 0, 0, 1)))
    assert results["evaluator_tpr"] == Proportion(1.0, 1)
    assert "evaluator_tnr" not in results  # no wrong answer was judged: no share, rather than 0
    assert results["evaluator_abstained"] == Proportion(3 / 4, 4)


def test_recovery_is_of_contested_episodes_alone():
    def vote(anyone: bool, contested: bool, recovered: bool) -> dict[str, Any]:
        return {"any_correct": anyone, "contested": contested, "recovered": recovered}

    results = role_shares(
        planted(
            vote(True, True, True), vote(True, True, False), vote(True, True, False),
            vote(True, False, False), vote(False, False, False), {},
            {"any_correct": None, "contested": None, "recovered": None},
        )
    )  # fmt: skip
    assert results["any_correct"] == Proportion(4 / 5, 5)
    assert results["contested"] == Proportion(3 / 5, 5)
    assert results["aggregator_recovery"] == Proportion(1 / 3, 3)
    assert set(results) == {"any_correct", "contested", "aggregator_recovery"}


def test_refinement_is_of_wrong_and_of_right_first_attempts():
    def refined(first: bool, last: bool) -> dict[str, Any]:
        return {
            "first_correct": first,
            "recovered": last and not first,
            "regressed": first and not last,
        }

    cases = [(False, True), (False, False), (False, False), (False, False), (True, True),
             (True, False)]  # fmt: skip
    results = role_shares(planted(*(refined(*case) for case in cases)))
    assert results == {
        "refinement_recovery": Proportion(1 / 4, 4), "refinement_regression": Proportion(1 / 2, 2)
    }  # fmt: skip


def test_a_verifier_of_evidence_has_its_own_names():
    counts = {"true_yes": 3, "false_yes": 1, "true_no": 1, "false_no": 1}
    results = role_shares(planted(counts))
    assert results == {"verifier_tpr": Proportion(3 / 4, 4), "verifier_tnr": Proportion(1 / 2, 2)}


def test_facts_of_other_kinds_are_passed_over():
    odd = {"contested": "yes", "recovered": [1], "any_correct": 0.5, "first_correct": "no"}
    assert role_shares(planted(odd)) == {}
    assert role_shares([]) == {}


@pytest.mark.parametrize("workflow", ["voting_v0", "eval_opt_v0", "orch_workers_v0"])
def test_scripted_episodes_give_what_their_calls_say(workflow):
    built = make_workflow(workflow, "math")
    problems = distinct_problems(built.task, "validation", 60)
    policy_map = PolicyMap.shared(ScriptedPolicy(built, 0.6, seed=2), built.role_counts())
    records = Rollout(built, policy_map, seed=0).run([EpisodeJob(problem) for problem in problems])
    shares = summarize(records)["shares"]
    if workflow == "eval_opt_v0":
        judged = {True: [0, 0], False: [0, 0]}
        for record in records:
            for before, call in zip(record.calls, record.calls[1:], strict=False):
                if call.role == "evaluator":
                    tally = judged[before.role_score == 1.0]
                    tally[0] += int(call.role_score or 0)
                    tally[1] += 1
        for name, right in (("evaluator_tpr", True), ("evaluator_tnr", False)):
            hits, cases = judged[right]
            assert shares[name] == {"share": hits / cases, "of": cases}
        first = [(record.calls[0].role_score == 1.0, record.score == 1.0) for record in records]
        wrong = [last for start, last in first if not start]
        assert shares["refinement_recovery"] == {"share": sum(wrong) / len(wrong), "of": len(wrong)}
    else:
        role = {"voting_v0": "generator", "orch_workers_v0": "worker"}[workflow]
        contested = [
            record.score == 1.0
            for record in records
            if len({call.role_score for call in record.calls if call.role == role}) == 2
        ]
        assert shares["aggregator_recovery"] == {
            "share": sum(contested) / len(contested), "of": len(contested)
        }  # fmt: skip


SINGLE = make_workflow("single_v0", "math")
PROBLEMS = distinct_problems(SINGLE.task, "validation", 20)


def policy_map(skill: float = 0.5) -> PolicyMap:
    return PolicyMap.shared(ScriptedPolicy(SINGLE, skill, seed=3), SINGLE.role_counts())


def answered(problem, *answers: str | None) -> list[EpisodeRecord]:
    grades = SINGLE.task.grade_batch([problem] * len(answers), answers)
    return [
        EpisodeRecord(
            "single_v0", "math", problem.id, f"{problem.id}#{number}", problem.text, problem.gold,
            grade.score, answer, False, {}, {},
        )
        for number, (answer, grade) in enumerate(zip(answers, grades, strict=True))
    ]  # fmt: skip


def test_pass_at_k_is_the_share_of_draws_with_a_right_one():
    for samples, right in itertools.product(range(1, 7), range(7)):
        if right > samples:
            continue
        attempts = [index < right for index in range(samples)]
        for k in range(1, samples + 1):
            draws = list(itertools.combinations(attempts, k))
            share = sum(any(draw) for draw in draws) / len(draws)
            assert pass_at(samples, right, k) == pytest.approx(share)


def test_equivalent_answers_vote_together_and_ties_go_to_the_first():
    first, second, third = PROBLEMS[:3]
    gold = first.gold
    records = [
        *answered(first, "-1", gold, "-2", f"{gold}.0"),  # two writings of one number
        *answered(second, "-1", second.gold, None, None),  # a tie of one against one
        *answered(third, None, None, None, None),
    ]
    results = vote(SINGLE, [first, second, third], records)
    assert (results["samples"], results["right"], results["abstained"]) == (4, 1, 1)
    assert results["accuracy"] == pytest.approx(1 / 3)
    fewer = vote(SINGLE, [first, second, third], records[1:])  # one verdict is unknown
    assert (fewer["samples"], fewer["right"], fewer["problems"]) == (4, 1, 3)
    with pytest.raises(UsageError, match="episodes of its own problems"):
        vote(SINGLE, [first, second], records)


def test_votes_are_worth_more_than_one_call():
    records, summary = evaluate(SINGLE, policy_map(0.6), PROBLEMS, samples=9)
    results = vote(SINGLE, PROBLEMS, records)
    assert results["calls"] == 9
    assert summary["accuracy"] < results["accuracy"]


def test_the_number_of_votes_follows_from_the_budget():
    assert votes_for({"calls": 4.2, "tokens": 90.0}, "calls", 1.0) == 4
    assert votes_for({"calls": 4.2, "tokens": 90.0}, "tokens", 20.0) == 4  # 4.5, even
    assert votes_for({"calls": 0.3}, "calls", 1.0) == 1
    with pytest.raises(UsageError, match="matched by calls"):
        votes_for({"tokens": 0.0}, "tokens", 0.0)
    with pytest.raises(UsageError, match=r"not counted and 20, per episode.*matched by calls"):
        votes_for({"tokens": 90.0, "uncounted": 1}, "tokens", 20.0)
    with pytest.raises(UsageError, match="unknown budget"):
        votes_for({}, "seconds", 1.0)  # type: ignore[arg-type]


def test_the_protocol_says_what_decides_a_figure(tmp_path):
    class Model(ScriptedPolicy):
        sampling = Sampling(temperature=0.7, top_p=0.9, max_tokens=33)
        thinking = False

    workflow = make_workflow("voting_v0", "math", preset="paper")
    model = Model(workflow, 1.0, name="m")
    players = PolicyMap(
        dict.fromkeys(workflow.role_counts(), model), {"generator": Lengths(80, 20)}
    )
    results = protocol_of(workflow, players, PROBLEMS, samples=2, seed=7)
    assert json.loads(json.dumps(results)) == {
        "workflow": "voting_v0",
        "task": "math",
        "split": "validation",
        "problems": 20,
        "problem_set": results["problem_set"],
        "samples": 2,
        "seed": 7,
        "reading": "lenient",
        "grader": grader_digest(),
        "examples": {},
        "score_range": [0.0, 1.0],
        "prompts": workflow.prompts_id,
        "settings": json.loads(json.dumps(dict(workflow.spec))),
        "policies": {"generator": "m", "aggregator": "m"},
        "decoding": {
            "m": {
                "decoding": "sampled", "temperature": 0.7, "top_p": 0.9, "top_k": 0,
                "max_tokens": 33, "thinking": False,
            }
        },
        "lengths": {"generator": [80, 20], "aggregator": [None, None]},
    }  # fmt: skip
    line = protocol_line(results)
    for part in ("validation, 20 problems", "2 per problem", "T=0.7 p=0.9", "lenient", "seed 7"):
        assert part in line
    other = protocol_of(workflow, players, PROBLEMS[1:], samples=2, seed=7)
    check_comparable(results, results, "x")
    with pytest.raises(UsageError, match=r"of other problems \(problems 19 -> 20, problem_set"):
        check_comparable(results, other, "x")
    changed = [replace(PROBLEMS[0], text="another"), *PROBLEMS[1:]]
    assert protocol_of(workflow, players, changed, samples=2, seed=7) != results


def test_an_evaluation_is_saved_with_its_protocol_and_can_grow(tmp_path):
    store = EvaluationDirectory(tmp_path, {"n": 20})
    evaluate(SINGLE, policy_map(), PROBLEMS, samples=1, store=store)
    _, grown = evaluate(SINGLE, policy_map(), PROBLEMS, samples=3, store=store)
    assert len((tmp_path / "episodes.jsonl").read_text().splitlines()) == 60
    _, fresh = evaluate(SINGLE, policy_map(), PROBLEMS, samples=3)
    assert {k: grown[k] for k in ("accuracy", "avg@3", "pass@3")} == {
        k: fresh[k] for k in ("accuracy", "avg@3", "pass@3")
    }
    assert read_summary(tmp_path)["protocol"]["samples"] == 3
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(DataError, match="no protocol"):
        read_summary(tmp_path)
    with pytest.raises(UsageError, match="no finished evaluation"):
        read_summary(tmp_path / "none")


def test_the_best_checkpoint_is_not_chosen_on_test():
    check_selection("validation")
    with pytest.raises(UsageError, match="eval_split to validation"):
        check_selection("test")


def test_the_hash_of_the_prompts_covers_the_tasks_instruction(monkeypatch):
    before = make_workflow("single_v0", "math").prompts_id
    monkeypatch.setattr(type(SINGLE.task), "instruction", "Answer in words.")
    after = make_workflow("single_v0", "math").prompts_id
    assert before != after
    assert before.split(":")[0] == after.split(":")[0] == "single_v0@1"
