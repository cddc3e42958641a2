import random

import pytest

from flowzoo.envs import make_workflow
from flowzoo.envs.episode.recording import record
from flowzoo.envs.readers import read_verdict
from flowzoo.envs.settings import read_settings
from flowzoo.envs.workflows.eval_opt import search_verdict
from flowzoo.errors import UsageError
from tests.envs.playing import play, play_experts

PROMPT = "Compute 2+3*4.\nPut the final answer in \\boxed{}."
WRONG, RIGHT = "2+3=5. \\boxed{20}", "3*4=12. \\boxed{14}"
ACCEPT, REJECT = "All holds. \\boxed{Correct}", "Multiply first. \\boxed{Incorrect}"


def test_tools_none_is_a_value_on_the_command_line():
    options = read_settings(["tools=none"])
    assert make_workflow("eval_opt_v0", **options) == make_workflow("eval_opt_v0", tools="none")


def replies(generator: list[str], evaluator: list[str]) -> dict[str, list[str]]:
    return {"generator_0": generator, "evaluator_0": evaluator}


def test_golden_transcript_strict():
    finished = play("eval_opt_v0", replies([WRONG, RIGHT], [REJECT, ACCEPT]))
    review = (
        "Compute 2+3*4.\n\nAnswer:\n{}\n\nCheck this answer. Say what is wrong without giving the "
        "solution, then put Correct or Incorrect in \\boxed{{}}."
    )
    improve = f"Review:\n{REJECT}\n\nAnswer the problem again. Put the final answer in \\boxed{{}}."
    message = [[(m["role"], m["content"]) for m in call.messages] for call in finished.calls]
    assert message == [
        [("user", PROMPT)],
        [("user", review.format(WRONG))],
        [("user", PROMPT), ("assistant", WRONG), ("user", improve)],
        [("user", review.format(RIGHT))],
    ]
    assert [(c.agent, c.turn, c.phase) for c in finished.calls] == [
        ("generator_0", 0, 0),
        ("evaluator_0", 0, 1),
        ("generator_0", 1, 2),
        ("evaluator_0", 1, 3),
    ]
    assert (finished.score, finished.answer) == (1.0, "14")
    assert dict(finished.facts) == {
        "rounds": 2,
        "first_correct": False,
        "recovered": True,
        "regressed": False,
        "true_accept": 1,
        "false_accept": 0,
        "true_reject": 1,
        "false_reject": 0,
        "abstained": 0,
    }


def test_golden_history_paper():
    """(paper): the history keeps the turns of both roles as assistant turns."""
    finished = play("eval_opt_v0", replies([WRONG, RIGHT], [REJECT, ACCEPT]), preset="paper")
    third, fourth = finished.calls[2].messages, finished.calls[3].messages
    check = (
        "Check the newest answer. Say what is wrong without giving the solution, then put Correct "
        "or Incorrect in \\boxed{}."
    )
    again = "Answer the problem again. Put the final answer in \\boxed{}."
    assert [(m["role"], m["content"]) for m in finished.calls[1].messages] == [
        ("user", PROMPT),
        ("assistant", WRONG),
        ("user", check),
    ]
    assert [(m["role"], m["content"]) for m in third] == [
        ("user", PROMPT),
        ("assistant", WRONG),
        ("assistant", REJECT),
        ("user", again),
    ]
    assert [(m["role"], m["content"]) for m in fourth] == [
        ("user", PROMPT),
        ("assistant", WRONG),
        ("assistant", REJECT),
        ("assistant", RIGHT),
        ("user", check),
    ]


def test_strict_does_not_judge_the_last_attempt():
    """Strict math is at most 5 calls."""
    finished = play("eval_opt_v0", replies([WRONG] * 3, [REJECT] * 2))
    assert len(finished.calls) == 5
    assert finished.facts["rounds"] == 3


def test_paper_judges_the_last_attempt_too_and_trains_it():
    """(paper): the wasted last evaluation is made: 6 calls."""
    finished = play("eval_opt_v0", replies([WRONG] * 2 + [RIGHT], [REJECT] * 3), preset="paper")
    assert len(finished.calls) == 6
    assert [call.reward for call in finished.calls] == [1.0] * 6
    assert (finished.facts["true_reject"], finished.facts["false_reject"]) == (2, 1)


def test_dr_mas_is_two_rounds_with_one_verdict():
    """(dr_mas): at most 3 calls."""
    finished = play("eval_opt_v0", replies([WRONG, RIGHT], [REJECT]), preset="dr_mas")
    assert [call.agent for call in finished.calls] == ["generator_0", "evaluator_0", "generator_0"]
    assert finished.score == 1.0


def test_a_malformed_verdict_goes_on_in_strict_and_accepts_in_dr_mas():
    """(dr_mas): a malformed verdict counts as approval; strict counts an abstention."""
    strict = play("eval_opt_v0", replies([WRONG, RIGHT], ["hm", ACCEPT]))
    assert (strict.score, strict.facts["abstained"], strict.facts["rounds"]) == (1.0, 1, 2)
    assert [call.reward for call in strict.calls] == [1.0, 0.0, 1.0, 1.0]
    assert strict.calls[1].role_score == 0.0
    lax = play("eval_opt_v0", replies(["The answer is 14."], ["hm"]), preset="dr_mas")
    assert lax.answer is None  # only the verdict is read leniently
    assert (lax.score, lax.facts["abstained"], lax.facts["rounds"]) == (0.0, 1, 1)


def test_paper_searches_verdicts_in_the_whole_text():
    review = "The steps are correct, the answer maybe."
    finished = play("eval_opt_v0", replies([RIGHT], [review]), preset="paper")
    assert (finished.calls[1].strict, finished.calls[1].lenient) == (False, True)
    assert finished.facts["true_accept"] == 1
    strict = play("eval_opt_v0", replies([RIGHT] * 3, [review] * 2))
    assert strict.facts["abstained"] == 2
    assert strict.calls[1].lenient is True


def test_verdicts_in_words_rule_in_strict_and_dr_mas_and_not_in_paper():
    review = "The answer is incorrect. The correct answer is 15."
    for preset in ("strict", "dr_mas"):
        finished = play(
            "eval_opt_v0", replies([WRONG, RIGHT], [review, ACCEPT]), preset=preset, max_rounds=3
        )
        assert (finished.facts["true_reject"], finished.facts["abstained"]) == (1, 0)
    paper = play("eval_opt_v0", replies([WRONG], [review]), preset="paper")
    assert (paper.calls[1].strict, paper.facts["false_accept"]) == (False, 1)


@pytest.mark.parametrize(
    ("text", "strict", "lenient"),
    [
        ("\\boxed{\\text{CORRECT}}", True, True),
        ("it is incorrect", False, False),
        ("Correct, then incorrect, so correct", None, True),
        ("uncorrected", None, None),
    ],
)
def test_verdicts(text, strict, lenient):
    assert read_verdict(text) is strict
    assert search_verdict(text) is lenient


@pytest.mark.parametrize(
    ("attempts", "recovered", "regressed"),
    [
        ([WRONG, RIGHT], True, False),
        ([RIGHT, WRONG], False, True),
        ([RIGHT, RIGHT], False, False),
        ([WRONG, WRONG], False, False),
        ([RIGHT, WRONG, RIGHT], False, False),
    ],
)
def test_recovered_and_regressed_compare_first_and_last(attempts, recovered, regressed):
    verdicts = [REJECT] * (len(attempts) - 1)
    finished = play("eval_opt_v0", replies(attempts, verdicts), max_rounds=len(attempts))
    assert (finished.facts["recovered"], finished.facts["regressed"]) == (recovered, regressed)
    assert finished.score == float(attempts[-1] == RIGHT)


def test_rewards_by_hand():
    texts = replies([WRONG, RIGHT], [ACCEPT.replace("Correct", "Incorrect"), ACCEPT])
    local = play("eval_opt_v0", texts, credit="local")
    assert [call.reward for call in local.calls] == [0.2, 1.0, 1.0, 1.0]
    assert local.returns == {"generator_0": 0.6, "evaluator_0": 1.0}
    mixed = play("eval_opt_v0", texts, credit="mix", alpha=2.0)
    assert [call.reward for call in mixed.calls] == [2.2, 3.0, 3.0, 3.0]


def test_one_round_is_never_evaluated_in_strict():
    finished = play("eval_opt_v0", {"generator_0": [RIGHT]}, max_rounds=1)
    assert (len(finished.calls), finished.score) == (1, 1.0)
    assert finished.returns == {"generator_0": 1.0, "evaluator_0": 0.0}


def test_published_takes_the_first_boxed_verdict_and_goes_on_without_one():
    """(published): the flow of paper, in which words decide nothing."""
    reviews = [
        "I cannot say that it is correct.",
        "\\boxed{Incorrect}, no: \\boxed{Correct}",
        "Correct",
    ]
    finished = play("eval_opt_v0", replies([WRONG] * 2 + [RIGHT], reviews), preset="published")
    assert len(finished.calls) == 6
    assert [(call.strict, call.lenient) for call in finished.calls[1::2]] == [
        (False, False), (True, True), (False, False),
    ]  # fmt: skip
    assert [call.reward for call in finished.calls] == [1.0] * 6
    assert (finished.facts["abstained"], finished.facts["true_reject"]) == (2, 1)
    assert [m["role"] for m in finished.calls[3].messages] == [
        "user", "assistant", "assistant", "assistant", "user",
    ]  # fmt: skip
    paper = play("eval_opt_v0", replies([WRONG], reviews[:1]), preset="paper")
    assert (len(paper.calls), paper.facts["false_accept"]) == (2, 1)


def test_own_histories_alternate_and_quote_the_other_agent():
    """(v2 of the public code): strict alternation; reviews and answers stand in user turns."""
    attempts, reviews = (
        [WRONG, "2*3=6. \\boxed{10}", RIGHT],
        [REJECT, "No. \\boxed{Incorrect}", ACCEPT],
    )
    finished = play("eval_opt_v0", replies(attempts, reviews), preset="published", history="own")
    assert [call.agent for call in finished.calls] == ["generator_0", "evaluator_0"] * 3
    for call in finished.calls:
        roles = [message["role"] for message in call.messages]
        assert roles == ["user", "assistant"] * call.turn + ["user"]
    writer, checker = finished.calls[4].messages, finished.calls[5].messages
    assert [m["content"] for m in writer[1::2]] == attempts[:2]
    assert [m["content"] for m in checker[1::2]] == reviews[:2]
    assert writer[0]["content"] == PROMPT
    for message, review in zip(writer[2::2], reviews, strict=False):
        assert message["content"].startswith(f"Review:\n{review}\n\nAnswer the problem again.")
    for message, attempt in zip(checker[::2], attempts, strict=True):
        assert message["content"].startswith(f"Compute 2+3*4.\n\nAnswer:\n{attempt}\n\nCheck")
    # The course is the preset's: without an attempt left, strict asks no evaluator.
    strict = play("eval_opt_v0", replies(attempts, reviews[:2]), history="own")
    assert [call.messages for call in strict.calls] == [c.messages for c in finished.calls[:5]]


def test_histories_are_by_preset_unless_named():
    texts = replies([WRONG, RIGHT], [REJECT, ACCEPT])
    for preset, history in (("strict", "latest"), ("paper", "shared")):
        usual, named = (play("eval_opt_v0", texts, preset=preset, **options)
                        for options in ({}, {"history": history}))  # fmt: skip
        assert [call.messages for call in usual.calls] == [call.messages for call in named.calls]
    with pytest.raises(UsageError, match="unknown history 'all'"):
        make_workflow("eval_opt_v0", history="all")


def test_published_asks_for_another_method_and_paper_for_another_answer():
    texts = replies([WRONG, RIGHT], [REJECT, ACCEPT])
    again = {preset: play("eval_opt_v0", texts, preset=preset).calls[2].messages[-1]["content"]
             for preset in ("paper", "published")}  # fmt: skip
    assert again == {
        "paper": "Answer the problem again. Put the final answer in \\boxed{}.",
        "published": "Answer the problem again with another method. Put the final answer in "
        "\\boxed{}.",
    }
    code = make_workflow("eval_opt_v0", "code", preset="published")
    assert "in another way if its idea is wrong" in code.wording("improve_otherwise")


@pytest.mark.parametrize(
    ("review", "accepts", "readable"),
    [
        ("Fine. <verify>approve</verify>", True, True),
        ("<verify>reject</verify>", False, True),
        ("<verify>reject</verify> or <verify>approve</verify>", True, True),
        ("<verify> reject\n</verify>", False, True),
        ("<verify>no</verify>", True, False),
        ("<verify>Reject</verify>", True, False),
        ("\\boxed{Incorrect}", True, False),
        ("<think><verify>reject</verify></think>hm", True, False),
    ],
)
def test_tags_are_read_as_in_the_public_code_of_dr_mas(review, accepts, readable):
    """(dr_mas): approve anywhere, else reject, else it approves; an unread one is fined."""
    attempts = [WRONG] if accepts else [WRONG, RIGHT]
    finished = play(
        "eval_opt_v0", replies(attempts, [review]), preset="dr_mas", verdicts="tags",
        format_penalty=0.1,
    )  # fmt: skip
    assert finished.calls[1].strict is readable
    assert finished.calls[1].reward == finished.score - (0.0 if readable else 0.1)
    request = finished.calls[1].messages[-1]["content"]
    assert request.endswith("then write <verify>approve</verify> or <verify>reject</verify>.")
    assert "boxed{}" not in request


@pytest.mark.parametrize("history", ["latest", "shared", "own"])
@pytest.mark.parametrize("task", ["math", "code"])
def test_experts_and_examples_speak_in_tags(history, task):
    workflow = make_workflow("eval_opt_v0", task, verdicts="tags", history=history, max_rounds=2)
    problem = workflow.task.problem(0)
    calls = record(play_experts(workflow, problem, skill=1.0)).calls
    assert [call.role_score for call in calls] == [1.0, 1.0]
    assert "<verify>approve</verify>" in calls[1].reply
    failed = record(play_experts(workflow, problem, skill=0.0))
    assert "<verify>approve</verify>" in failed.calls[1].reply  # of a wrong answer
    other = workflow.task.solve(problem, random.Random(1), False)
    for answer, start in ((calls[0].reply, "approve</verify>"), (other, "reject</verify> ")):
        chat = [
            {**message, "content": message["content"].replace(calls[0].reply.strip(), answer)}
            for message in calls[1].messages
        ]
        shown = workflow.example("evaluator", chat, problem, random.Random(0))
        assert shown.startswith(f"<verify>{start}")
