"""Stored replies in forms, the endpoint that says them, and the causes of differing verdicts."""

import json
from urllib.request import Request, urlopen

import pytest

from benchmarks.reconcile.causes import ONLY, cause
from benchmarks.reconcile.forms import FORMS, gsm8k, humaneval, math500
from benchmarks.reconcile.replies import stored_endpoint
from benchmarks.reconcile.scores import Score
from flowzoo.reward import score_batch

GSM8K = {"question": "How many?", "answer": "3 + 4 = <<3+4=7>>7 apples.\n#### 7"}
MATH = {"problem": "What?", "solution": r"So $\boxed{\frac{1}{2}}$.", "answer": r"\frac{1}{2}"}
PROGRAM = {
    "prompt": 'def one(x: int) -> int:\n    """One more."""\n',
    "canonical_solution": "    return x + 1\n",
    "entry_point": "one",
}


@pytest.mark.parametrize(("make", "row", "gold"), [(gsm8k, GSM8K, "7"), (math500, MATH, "1/2")])
def test_flowzoo_calls_the_forms_of_mathematics_as_their_labels_do(make, row, gold):
    replies = [reply for reply in make(row) if reply.right is not None]
    scores = score_batch([reply.text for reply in replies], [gold] * len(replies)).scores
    missed = [
        reply.form
        for reply, score in zip(replies, scores, strict=True)
        if bool(score) != reply.right
    ]
    assert missed == []


def test_forms_have_names_of_their_own_and_both_labels():
    for make, row in zip(FORMS.values(), (GSM8K, MATH, PROGRAM), strict=True):
        forms = [*make(row)]
        assert len({reply.form for reply in forms}) == len(forms) >= 15
        assert {True, False} <= {reply.right for reply in forms}


def test_a_form_of_a_program_holds_the_function_or_its_body():
    for reply in humaneval(PROGRAM):
        assert not reply.right or "return x + 1" in reply.text, reply.form
        assert "<<" not in reply.text


def test_a_problem_gets_its_replies_one_after_the_other():
    replies = [
        {"set": "GSM8K", "doc": {"question": question}, "reply": text}
        for question, text in (("How many?", "7"), ("How long?", "9"), ("How many?", "8"))
    ]

    def asked(url: str, question: str) -> str:
        body = json.dumps({"messages": [{"role": "user", "content": f"{question}\nBox it."}]})
        with urlopen(Request(f"{url}/chat/completions", body.encode(), method="POST")) as answer:
            return json.load(answer)["choices"][0]["message"]["content"]

    with stored_endpoint(replies) as url:
        said = [asked(url, question) for question in ("How many?", "How long?", "How many?")]
    assert said == ["7", "9", "8"]


@pytest.mark.parametrize(
    ("name", "reply", "theirs", "ours", "said"),
    [
        ("lm-eval, strict-match", "It is 7.", (0.0, "[invalid]"), "7", "reads only `#### N`"),
        ("Inspect, text", r"\boxed{7}", (0.0, ""), "7", ONLY["Inspect, text"]),
        ("lm-eval, flexible-extract", "It is 7.00.", (0.0, "7.00."), "7", "compared as text"),
        ("lm-eval, flexible-extract", "#### 7\nI took 2 steps", (0.0, "2"), "7", "last number"),
        ("lighteval", "#### 7\nQuestion: more?\n#### 9", (1.0, "7"), "9", "stops at"),
        ("Inspect", r"Of 8, \boxed{7} are left", (0.0, "8"), "7", "words of their own"),
    ],
)
def test_a_cause_is_named_from_the_reply_and_what_was_read(name, reply, theirs, ours, said):
    one = {"set": "GSM8K", "source": "forms", "form": "a form", "row": 0, "reply": reply}
    assert said in cause(name, one, Score(*theirs), Score(1 - theirs[0], ours))


@pytest.mark.parametrize(
    ("error", "said"),
    [("SyntaxError: invalid syntax", "no Python"), ("NameError: List", "lacks an import")],
)
def test_a_program_that_fails_elsewhere_has_the_cause_of_its_error(error, said):
    one = {"set": "HumanEval", "source": "forms", "form": "a form", "row": 0, "reply": "```x```"}
    assert said in cause("Inspect", one, Score(0.0, f"RE {error}"), Score(1.0, ""))
