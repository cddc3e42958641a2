"""Runs that learn nothing are found in their metrics, healthy ones are left in peace."""

from dataclasses import asdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flowzoo.agents.evaluation.alarms import CUT
from flowzoo.baselines.diagnostics.silence import STEPS, silence_record, silences
from flowzoo.baselines.settings.config import TrainConfig

SETTINGS = asdict(TrainConfig(max_tokens=64))


def make_row(step: int, **changes: Any) -> dict[str, Any]:
    """The metrics of a healthy iteration of two roles that share a policy."""
    row = {
        "step": step, "reward/mean": 0.5, "group/count": 16, "group/zero_variance": 4,
        "group/singleton": 0, "learn/rows/p": 64.0, "learn/rows_trained/p": 40.0,
        "learn/truncated/p": 3.0, "learn/steps/p": 1.0,
    }  # fmt: skip
    for role in ("solver", "judge"):
        row |= {f"truncated/{role}": 0.05, f"strict/{role}": 0.9, f"reward_std/{role}": 0.4}
        row |= {f"signal/{role}/p": 0.6, f"group/singleton/{role}": 0.0}
    return row | changes


def causes(rows: list[dict[str, Any]], **settings: Any) -> list[str]:
    return [one.cause for one in silences(rows, SETTINGS | settings)]


def text(rows: list[dict[str, Any]], cause: str, **settings: Any) -> str:
    (found,) = [one.text for one in silences(rows, SETTINGS | settings) if one.cause == cause]
    return found


def rows_of(count: int = STEPS, /, **changes: Any) -> list[dict[str, Any]]:
    return [make_row(step, **changes) for step in range(1, count + 1)]


def test_a_healthy_run_is_left_in_peace():
    rows = [{"step": 0, "eval/reward/mean": 0.0}, *rows_of(10)]
    assert all(causes(rows[:end]) == [] for end in range(len(rows) + 1))
    assert silence_record(rows, SETTINGS) == []


def test_a_judge_with_one_verdict_is_told_before_training():
    shares = {"tpr": 0.04, "tnr": 0.91}
    row = {"step": 0, "eval/scores": [0.5] * 60, "eval/strict/evaluator": 1.0}
    row |= {"eval/calls/evaluator": 120, "eval/truncated/evaluator": 0.0}
    for name, share in shares.items():
        row |= {f"eval/share/evaluator_{name}": share, f"eval/share_of/evaluator_{name}": 60}
    said = text([row], "verdict/evaluator", workflow="eval_opt")
    assert said.startswith("evaluator: accepts 4 % of the right answers and rejects 91 % of the")
    assert "warm up first (flowzoo sft eval_opt" in said
    assert causes([row | {"eval/share/evaluator_tpr": 0.5}]) == []


def test_a_step_that_trains_no_row_is_told_at_once_with_what_to_change():
    cut = make_row(1, **{"learn/rows_trained/p": 0.0, "learn/truncated/p": 60.0})
    said = text([cut], "nothing")
    assert said.startswith("step 1 trained nothing: 0 of 64 rows, no optimizer step: 94 % of the")
    assert "raise --max-tokens (now 64)" in said
    assert "--truncated penalize" in said
    flat = make_row(1, **{"learn/rows_trained/p": 0.0, "reward/mean": 0.0})
    said = text([flat], "nothing", samples=4)
    assert "no group has rewards that differ (mean reward 0.00)" in said
    assert "--samples (now 4)" in said
    assert "--candidates" in text([flat], "nothing", algorithm="at_grpo")
    unread = flat | {"strict/solver": 0.0, "strict/judge": 0.0}
    assert "no reply could be read" in text([unread], "nothing")
    assert "an easier level" in said
    assert "harder problems" in text([flat | {"reward/mean": 1.0}], "nothing")


def test_one_idle_policy_of_two_is_no_step_without_training():
    row = make_row(1, **{"learn/rows_trained/p": 0.0, "learn/rows/q": 8.0})
    assert causes([row | {"learn/rows_trained/q": 8.0}]) == []
    assert causes([row | {"learn/rows_trained/q": 0.0}]) == ["nothing"]


def test_truncation_is_told_after_three_steps_in_a_row():
    rows = rows_of(**{"truncated/solver": 0.4})
    assert causes(rows) == ["truncation/solver"]
    assert causes(rows[:-1]) == []
    assert causes([*rows[:-1], make_row(3, **{"truncated/solver": CUT})]) == []
    said = text(rows, "truncation/solver")
    assert "40 % or more of the replies of solver" in said
    assert "left out of the loss in steps 1 to 3" in said
    own = text(rows, "truncation/solver", lengths=("solver=/32",), truncated="penalize")
    assert "raise --lengths (now solver=/32)" in own
    assert "penalized in steps" in own
    assert "--truncated penalize" not in own


def test_rewards_that_cannot_vary():
    flat = {"group/zero_variance": 12, "group/singleton": 4, "reward/mean": 1.0,
            "signal/solver/p": 0.0, "signal/judge/p": 0.0}  # fmt: skip
    rows = rows_of(**flat)
    assert causes(rows) == ["reward"]
    assert "in steps 1 to 3 (mean reward 1.00)" in text(rows, "reward")
    assert "harder problems (--options level=N)" in text(rows, "reward")
    assert "an easier level" in text(rows_of(**flat | {"reward/mean": 0.0}), "reward")
    assert causes([*rows[:-1], make_row(3)]) == []
    # Algorithms without groups: the rewards themselves.
    lone = {"group/count": 0, "group/zero_variance": 0, "signal/solver/p": 0.0,
            "signal/judge/p": 0.0}  # fmt: skip
    assert causes(rows_of(**lone)) == []
    lone |= {"reward_std/solver": 0.0, "reward_std/judge": 0.0}
    assert causes(rows_of(**lone)) == ["reward"]


def test_a_role_without_signal_beside_one_with():
    rows = rows_of(**{"signal/judge/p": 0.0})
    assert causes(rows) == ["role/judge"]
    assert "its advantages are all 0" in text(rows, "role/judge")
    assert "an easier level (--options level=1)" in text(rows, "role/judge")
    assert "a warm start" in text(rows, "role/judge", options=("level=1",))
    easy = rows_of(**{"signal/judge/p": 0.0, "reward/judge": 1.0})
    assert "harder problems (--options level=N)" in text(easy, "role/judge")
    masked = rows_of(**{"signal/judge/p": 0.0, "truncated/judge": 1.0})
    assert "100 % of its replies ran into the length limit" in text(masked, "role/judge")
    alone = rows_of(**{"signal/judge/p": 0.0, "group/singleton/judge": 1.0})
    assert "alone in its group" in text(alone, "role/judge")
    other = rows_of(**{"signal/judge/p": 0.0, "signal/judge/q": 0.5})
    assert causes(other) == [], "another agent of the role learns"


def test_the_record_of_a_run_counts_and_a_resumed_run_finds_the_same():
    rows = [*rows_of(2), *(make_row(step, **{"truncated/solver": 0.9}) for step in range(3, 8))]
    (record,) = silence_record(rows, SETTINGS)
    assert record["text"].startswith("90 % or more of the replies of solver")
    del record["text"]
    assert record == {"cause": "truncation/solver", "first": 5, "last": 7, "steps": 3}
    # What a process finds at a step depends on the last rows alone, whoever wrote them.
    assert silences(rows[-STEPS:], SETTINGS) == silences(rows, SETTINGS)


def test_rows_of_older_versions_are_judged_by_what_they_have():
    old = [{name: value for name, value in row.items() if not name.startswith("signal/")}
           for row in rows_of(**{"learn/rows_trained/p": 0.0})]  # fmt: skip
    assert causes(old) == ["nothing"]


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "learn/rows_trained/p": st.sampled_from([0.0, 40.0]),
                "learn/truncated/p": st.sampled_from([0.0, 64.0]),
                "truncated/solver": st.sampled_from([0.0, 0.31, 1.0]),
                "group/zero_variance": st.sampled_from([0, 16]),
                "signal/solver/p": st.sampled_from([0.0, 0.5]),
                "signal/judge/p": st.sampled_from([0.0, 0.5]),
            }
        ),
        max_size=8,
    )
)
def test_every_cause_is_one_line_and_counted_where_it_held(changes):
    rows = [make_row(step, **one) for step, one in enumerate(changes, start=1)]
    held = [one for end in range(len(rows) + 1) for one in silences(rows[:end], SETTINGS)]
    record = {one["cause"]: one["steps"] for one in silence_record(rows, SETTINGS)}
    assert record == {name: sum(one.cause == name for one in held) for name in record}
    assert {one.cause for one in held} == set(record)
    assert all("\n" not in one.text and "--" in one.text for one in held)
    silent = sum(not row["learn/rows_trained/p"] for row in rows)
    assert sum(one.cause == "nothing" for one in held) == silent


def test_the_first_evaluation_and_the_first_step_are_judged_alone():
    start = {"step": 0, "eval/reward/mean": 0.0, "eval/calls/solver": 24.0,
             "eval/strict/solver": 0.0, "eval/truncated/solver": 0.5}  # fmt: skip
    settings = {"workflow": "voting", "options": ("level=1",), "model": "some/model"}
    assert causes([start], **settings) == ["truncation/solver", "unread/solver"]
    said = text([start], "unread/solver", **settings)
    assert said.startswith("solver: none of 24 replies could be read (strict); show worked examp")
    assert "(flowzoo sft voting --options level=1 --model some/model)" in said
    assert "flowzoo sft" not in text([start], "unread/solver", **settings, env="x.py:make")
    assert causes([start | {"step": 5}]) == []
    first = make_row(1, **{"calls/solver": 24.0, "strict/solver": 0.05})
    assert causes([first]) == ["unread/solver"]
    assert causes([first | {"calls/solver": 7.0, "strict/solver": 0.0}]) == []


def test_groups_of_the_first_step_without_signal():
    few = make_row(1, **{"group/count": 32, "group/zero_variance": 30, "reward/mean": 0.98,
                         "signal/solver/p": 0.06, "signal/judge/p": 0.06})  # fmt: skip
    assert causes([few]) == ["reward"]
    assert causes([few | {"signal/judge/p": 0.9}]) == [], "a baseline of another kind"
    assert "harder problems" in text([few], "reward")
    assert causes([few | {"step": 2}]) == []
    flat = few | {"group/zero_variance": 32, "learn/rows_trained/p": 0.0, "reward/mean": 0.0}
    assert causes([flat]) == ["nothing"]
    assert text([flat], "nothing").startswith("step 1 trained nothing")
    (entry,) = silence_record([flat], SETTINGS)
    assert entry["steps"] == 1
