"""Alarms at the start: what raises them, what does not, and what they say to type."""

import math
import random
from typing import Any

import pytest

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
from flowzoo.envs import Call, EpisodeRecord
from tests.baselines.rows import new_call

TYPED = Remedies(warm_start="flowzoo sft voting --model M")


def make_call(role: str = "judge", tokens: int = 20, **changes: Any) -> Call:
    values = {"slot": 1, "reply": "Incorrect", "output_ids": (1,) * tokens, "logps": ()}
    return new_call(role, **values | changes)


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
    def record(problem: int, sample: int, score: float) -> EpisodeRecord:
        return EpisodeRecord(
            "w", "t", f"p{problem}", f"{problem}/{sample}", "", "", score, None, False, {}, {}
        )

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
    def record(problem: int, sample: int, pay: float) -> EpisodeRecord:
        pays = {"one_0": pay, "other_0": -pay}
        return EpisodeRecord(
            "w", "t", f"p{problem}", f"{problem}/{sample}", "", "", 0.5, None, False, {}, pays,
            pay=pays,
        )  # fmt: skip

    alike = [record(problem, sample, 1.0) for problem in range(10) for sample in range(2)]
    (alarm,) = episode_alarms(alike, TYPED)
    assert alarm.text.endswith("to train, take more --samples")  # no game is easier or harder
    zero_sum = [record(problem, sample, sample) for problem in range(10) for sample in range(2)]
    assert episode_alarms(zero_sum, TYPED) == []  # one score, and two rewards
