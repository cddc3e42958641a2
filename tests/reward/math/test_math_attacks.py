"""Pairs found by attack, hostile replies, and copies of the problem; see docs/math-reward.md."""

import asyncio
import re
import threading
from pathlib import Path

import pytest

from flowzoo.envs.tasks import make_task
from flowzoo.envs.tasks.task import Problem
from flowzoo.errors import UsageError
from flowzoo.reward import MathOptions, equivalence_classes, score_batch
from flowzoo.reward.math.extract import _CHAT_MARK, formulas_of
from tests.tables import read_tables, shared_rows

TABLES, HACKS, HOSTILE, COPIES = (
    read_tables(__file__, name) for name in ("attacks", "hacks", "hostile", "copies")
)

BARE = MathOptions(read="answer", judge="none")


def is_equal(gold: str, answer: str) -> bool:
    """True if an extracted answer is equal to a gold, judged without the pool."""
    return score_batch([answer], [gold], BARE).scores == [1.0]


@pytest.mark.parametrize(("gold", "answer"), TABLES["equal"])
def test_equal(gold, answer):
    assert is_equal(gold, answer)
    assert is_equal(answer, gold) or "=" in answer or "approx" in answer


@pytest.mark.parametrize(("gold", "answer"), TABLES["different"])
def test_different(gold, answer):
    assert not is_equal(gold, answer)


@pytest.mark.parametrize("answer", TABLES["bounds"])
def test_a_bound_or_a_membership_never_reaches_the_judge_for_a_number(answer):
    assert score_batch([rf"\boxed{{{answer}}}"], ["7"]).statuses == ["different"]


@pytest.mark.parametrize(("reply", "gold"), TABLES["rejected"])
def test_a_rejected_answer_is_not_given(reply, gold):
    assert score_batch([reply], [gold]).scores == [0.0]


@pytest.mark.parametrize("answer", ["x" + "!" * 1400, "x" + " \\bmod 7" * 200])
def test_a_tree_deepened_by_postfixes_is_too_big(answer):
    assert score_batch([answer], ["x+1"], BARE).statuses == ["too_big"]
    assert equivalence_classes([answer, "x+1"]) == (0, 1)


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize("high", ["200", "n"])
@pytest.mark.parametrize("binder", ["sum", "prod"])
def test_nested_sums_do_not_multiply_to_a_hang(binder, high):
    nested = "".join(rf"\{binder}_{{{name}=1}}^{{{high}}}" for name in "abcdfghjklmopqrstuvw")
    assert score_batch([f"{nested} ab"], ["5"], BARE).statuses == ["different"]
    assert score_batch([f"{nested} ab"], [f"{nested} ba+1"], BARE).statuses == ["different"]


@pytest.mark.usefixtures("little_work")
def test_a_long_gold_of_open_boxes_is_read_in_linear_time():
    assert score_batch(["5"], ["\\fbox{" * 1_000_000]).statuses == ["bad_gold"]


def test_spaces_after_a_mark_of_a_chat_are_searched_in_linear_time():
    assert _CHAT_MARK.search("5<|im_end|>" + " " * 1_000_000 + "user.") is None


@pytest.mark.parametrize(("reply", "gold"), HACKS["not_values"])
def test_candidates_free_symbols_and_relations_are_no_values(reply, gold):
    assert score_batch([reply], [gold]).scores == [0.0]


@pytest.mark.parametrize("reply", HACKS["empty"])
def test_an_empty_box_is_no_answer_and_nothing_else_is_asked(reply):
    for read in ("auto", "strict", "lenient"):
        options = MathOptions(read=read)
        assert score_batch([reply], ["7"], options).scores == [0.0]
    assert score_batch(["42 \\boxed{}"], ["42"]).statuses == ["no_answer"]


def test_an_echo_of_the_problem_is_no_answer():
    echo = "What is 6 times 7? The question mentions 42. I do not know."
    assert score_batch([echo], ["42"]).scores == [0.0]
    assert score_batch([echo], ["42"], MathOptions(read="strict")).statuses == ["no_answer"]


@pytest.mark.parametrize(("reply", "score"), HACKS["last_box"])
def test_the_last_box_decides(reply, score):
    assert score_batch([reply], ["42"]).scores == [score]


def test_a_gold_shaped_text_outside_the_box_is_not_read():
    reply = "\\frac{1}{2} it is, 1/2, the answer is $\\frac{1}{2}$. \\boxed{3}"
    assert score_batch([reply], ["\\frac{1}{2}"]).scores == [0.0]
    assert score_batch([reply.replace("\\boxed{3}", "")], ["\\frac{1}{2}"]).scores == [1.0]
    strict = MathOptions(read="strict")
    assert score_batch([reply.replace("\\boxed{3}", "")], ["0.5"], strict).scores == [0.0]


@pytest.mark.parametrize(("reply", "gold"), HACKS["near_misses"])
def test_near_misses(reply, gold):
    assert score_batch([reply], [gold]).statuses == ["different"]


CANARY = Path("/tmp/flowzoo_canary")
TOUCH = f"__import__('pathlib').Path('{CANARY}').touch()"

ROWS = [
    *HOSTILE["plain"],
    *(
        ("".join(part * count for part, count in parts), gold)
        for parts, gold in HOSTILE["repeated"]
    ),
    ("\ud800\x00\u202e\\boxed{\ud800}", "42"),
    (f"\\boxed{{{TOUCH}}}", "0"),
    (f"The answer is ${TOUCH}$", "0"),
    (f"\\boxed{{x^2+{TOUCH}<0}}", "x<0"),
    (f"\\input{{/etc/passwd}}\\write18{{touch {CANARY}}}", "0"),
]


def check(rows: list[tuple[object, str, bool]]) -> list[str]:
    """Failures, a line each, with pairs that the judge, patient as it is here, gave up on."""
    faults = []
    for pred, gold, expected in rows:
        result = score_batch([pred], [gold])  # type: ignore[list-item]
        gave_up = result.statuses[0] in ("timeout", "crashed")
        if bool(result.scores[0]) != expected or gave_up:
            faults.append(f"{str(pred)[:60]!r} for {gold!r}: {result.statuses}")
    return faults


@pytest.mark.usefixtures("little_work")
def test_hostile_replies():
    CANARY.unlink(missing_ok=True)
    assert check([(pred, gold, False) for pred, gold in ROWS]) == []
    for pred, gold in ROWS:
        equivalence_classes([pred, gold, pred + "1"])
    assert not CANARY.exists()


@pytest.mark.usefixtures("little_work")
def test_shared_hostile_file_from_everywhere():
    rows = [
        (row.get("pred", "".join(part * n for part, n in row.get("pred_parts", []))), row["gold"],
         row["expected"])
        for row in shared_rows("math_hostile.jsonl")
    ]  # fmt: skip
    faults: list[str] = []
    thread = threading.Thread(target=lambda: faults.extend(check(rows)), daemon=True)
    thread.start()
    thread.join()

    async def inside() -> None:
        faults.extend(check(rows))

    asyncio.run(inside())
    assert faults + check(rows) == []


@pytest.mark.parametrize(("problem", "gold", "answer"), COPIES["copied"])
def test_a_copied_formula_is_not_paid(problem, gold, answer):
    assert score_batch([rf"\boxed{{{answer}}}"], [gold]).statuses == ["equal"]
    statuses = score_batch([rf"\boxed{{{answer}}}"], [gold], problems=[problem])
    assert statuses == ([0.0], ["copied"])


@pytest.mark.parametrize(("problem", "gold", "answer"), COPIES["answered"])
def test_an_answer_is_paid_wherever_it_comes_from(problem, gold, answer):
    assert score_batch([rf"\boxed{{{answer}}}"], [gold], problems=[problem]).statuses == ["equal"]


@pytest.mark.parametrize("form", COPIES["decorated"])
def test_no_decoration_of_a_copy_is_paid(form):
    task = make_task("math", level="1-5")
    problems = [task.problem(index) for index in range(200)]
    runs = [re.fullmatch(r"Compute ([^a-z]+)\..*", problem.text, re.DOTALL) for problem in problems]
    rows = [(p, form.format(run[1])) for p, run in zip(problems, runs, strict=True) if run]
    assert len(rows) > 80
    grades = task.grade_batch([p for p, _ in rows], [answer for _, answer in rows])
    paid = [answer for (_, answer), grade in zip(rows, grades, strict=True) if grade.score]
    assert paid == []


def test_copies_can_be_paid():
    problem = Problem("math", "test", 0, 0, "Compute 12+7*8.", "68")
    for copies, status in (("refused", "copied"), ("paid", "equal")):
        task = make_task("math", copies=copies)
        assert task.grade_batch([problem], ["12+7*8"])[0].status == status


def test_problems_are_texts_of_the_rows():
    with pytest.raises(UsageError, match="problems: expected a text for each of 1 rows"):
        score_batch(["1"], ["1"], problems=["a", "b"])
    with pytest.raises(UsageError, match="problem 0: expected a string, got NoneType"):
        score_batch(["1"], ["1"], problems=[None])  # type: ignore[list-item]


@pytest.mark.full
def test_formulas_of_math_500_are_paid_where_they_are_the_gold():
    rows = shared_rows("math500/test.jsonl")
    pairs = [(r, f) for r in rows for f in formulas_of(r["problem"]) if len(f) > 2]
    statuses = score_batch(
        [rf"\boxed{{{formula}}}" for _, formula in pairs],
        [row["answer"] for row, _ in pairs],
        problems=[row["problem"] for row, _ in pairs],
    )
    paid = [(row["answer"], f) for (row, f), s in zip(pairs, statuses.scores, strict=True) if s]
    assert statuses.statuses.count("copied") > 35
    assert [pair for pair in paid if pair[0] != pair[1]] == []
