import pytest

from flowzoo.envs.readers import read_plan
from flowzoo.envs.workflows.orch_workers import read_loosely, read_parts
from tests.envs.playing import play

PROMPT = "Compute 2+3*4.\nPut the final answer in \\boxed{}."
WRONG, RIGHT = "2+3=5. \\boxed{20}", "3*4=12. \\boxed{14}"
PLAN = "STRATEGY 1: multiply first\nSTRATEGY 2: guess"


def replies(plan: str, works: list[str], final: str) -> dict[str, list[str]]:
    workers = {f"worker_{slot}": [text] for slot, text in enumerate(works)}
    return {"orchestrator_0": [plan], **workers, "synthesizer_0": [final]}


def test_golden_transcript():
    finished = play("orch_workers_v0", replies(PLAN, [RIGHT, WRONG], "So \\boxed{14}"))
    assert [call.messages[0]["content"] for call in finished.calls] == [
        "Compute 2+3*4.\n\nDo not solve this. Name 1 to 3 strategies for solving it, one per line, "
        "each written as STRATEGY k: text",
        f"{PROMPT}\n\nStrategy: multiply first",
        f"{PROMPT}\n\nStrategy: guess",
        f"{PROMPT}\n\nWorker 1 (multiply first):\n{RIGHT}\n\nWorker 2 (guess):\n{WRONG}\n\n"
        "Write the final answer.",
    ]
    assert [(c.agent, c.slot, c.phase) for c in finished.calls] == [
        ("orchestrator_0", 0, 0),
        ("worker_0", 0, 1),
        ("worker_1", 1, 1),
        ("synthesizer_0", 0, 2),
    ]
    assert dict(finished.facts) == {
        "workers": 2,
        "abstained": False,
        "any_correct": True,
        "all_correct": False,
        "contested": True,
        "recovered": True,
    }
    assert finished.returns["worker_2"] == 0.0


def test_rewards_by_hand():
    texts = replies(PLAN, [RIGHT, WRONG], "\\boxed{14}")
    assert [c.reward for c in play("orch_workers_v0", texts).calls] == [1.0] * 4
    local = play("orch_workers_v0", texts, credit="local")
    assert [c.reward for c in local.calls] == pytest.approx([0.2 + 0.8 * 0.5, 1.0, 0.2, 1.0])
    mixed = play("orch_workers_v0", texts, credit="mix")
    assert [c.reward for c in mixed.calls] == pytest.approx([1.6, 2.0, 1.2, 2.0])


def test_the_synthesizers_own_answer_is_graded():
    finished = play("orch_workers_v0", replies(PLAN, [RIGHT, RIGHT], WRONG))
    assert (finished.score, finished.answer) == (0.0, "20")
    assert finished.facts["recovered"] is False
    unread = play("orch_workers_v0", replies(PLAN, [RIGHT, RIGHT], "fourteen"))
    assert (unread.score, unread.answer) == (0.0, None)


@pytest.mark.parametrize("credit", ["team", "local"])
def test_strict_without_a_plan_runs_all_workers_without_strategy(credit):
    """Counted as an abstention, which earns nothing, however well the workers did."""
    texts = replies("1. multiply first", [RIGHT] * 3, "\\boxed{14}")
    finished = play("orch_workers_v0", texts, credit=credit)
    assert [c.messages[0]["content"] for c in finished.calls[1:4]] == [PROMPT] * 3
    assert "Worker 3:\n" in finished.calls[4].messages[0]["content"]
    assert (finished.facts["abstained"], finished.facts["workers"]) == (True, 3)
    assert finished.calls[0].reward == 0.0
    assert finished.score == 1.0


@pytest.mark.parametrize(
    ("plan", "parts"),
    [
        ("1. multiply first\n2) then add", ("multiply first", "then add")),
        ("multiply before adding\nok\nadd what is left over", None),
        ("guess it", ("guess it",)),
        ("STRATEGY 1: label wins\n1. over numbers", ("label wins",)),
        ("", None),
    ],
)
def test_paper_cascade(plan, parts):
    """(paper): labeled lines, numbered list, lines over 10 characters, whole text."""
    if parts is None and plan:
        parts = ("multiply before adding", "add what is left over")
    works = [RIGHT] * len(parts or "abc")
    finished = play("orch_workers_v0", replies(plan, works, RIGHT), preset="paper")
    orders = [c.messages[0]["content"] for c in finished.calls[1:-1]]
    if parts is None:
        assert orders == [PROMPT] * 3
        assert finished.facts["abstained"] is True
    else:
        assert orders == [f"{PROMPT}\n\nStrategy: {part}" for part in parts]
        assert finished.facts["abstained"] is False


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("STRATEGY 1: a\nSTRATEGY 2: b\nSTRATEGY 3: c\nSTRATEGY 4: d", ("a", "b", "c")),
        ("  STRATEGY 9 :  spaced out  ", ("spaced out",)),
        ("STRATEGY 1:\nSTRATEGY 2: b", ("b",)),
        ("see STRATEGY 1: inside a line", None),
        ("<think>STRATEGY 1: hidden</think>", None),
        ("SUBTASK 1: other word", None),
        ("", None),
    ],
)
def test_plans_are_read_line_by_line(text, parts):
    assert read_parts(text, "STRATEGY", 3) == read_plan(text, "STRATEGY", 3) == parts


def test_other_forms_of_plans_are_read_in_strict_and_not_as_labels_in_paper():
    text = "- **Strategy 1:** a b\n- **Strategy 2:** b c"
    assert read_plan(text, "STRATEGY", 3) == ("a b", "b c")
    assert read_plan(text.replace("Strategy", "Sub-task"), "SUBTASK", 1) == ("a b",)
    assert read_parts(text, "STRATEGY", 3) is None


def test_the_cascade_is_capped_and_reads_nothing_in_nothing():
    assert read_loosely("1. a\n2. b\n3. c\n4. d", "STRATEGY", 3) == ("a", "b", "c")
    assert read_loosely("<think>all hidden", "STRATEGY", 3) is None


def test_subtasks_leave_the_role_scores_of_plan_and_parts_open():
    texts = replies("SUBTASK 1: multiply", ["\\boxed{12}"], RIGHT)
    finished = play("orch_workers_v0", texts, split_by="subtasks")
    assert finished.calls[1].messages[0]["content"] == (
        "Compute 2+3*4.\n\nDo only this part: multiply\nPut its result in \\boxed{}."
    )
    assert [call.role_score for call in finished.calls] == [None, None, 1.0]
    assert dict(finished.facts) == {"workers": 1, "abstained": False}
    with pytest.raises(Exception, match=r"none for role 'orchestrator': use credit=\"team\""):
        play("orch_workers_v0", texts, split_by="subtasks", credit="local")


def test_max_workers_sets_agents_and_prompt():
    finished = play("orch_workers_v0", replies(PLAN, [RIGHT], RIGHT), max_workers=1)
    assert "Name 1 to 1 strategies" in finished.calls[0].messages[0]["content"]
    assert set(finished.returns) == {"orchestrator_0", "worker_0", "synthesizer_0"}


@pytest.mark.parametrize(
    ("plan", "parts"),
    [
        ("Here strategy 2: guess\nstrategy 1: multiply\nfirst", ("multiply\nfirst", "guess")),
        ("1. guess\n   and check\n2. multiply", ("guess\n   and check", "multiply")),
        ("STRATEGY 4: d\nSTRATEGY 3: c\nSTRATEGY 2: b\nSTRATEGY 1: a", ("a", "b", "c")),
        ("", ("",)),
    ],
)
def test_published_plans(plan, parts):
    """(published): one worker for an empty plan; more parts than workers are cut, not refused."""
    works = [RIGHT] * len(parts)
    finished = play("orch_workers_v0", replies(plan, works, RIGHT), preset="published")
    orders = [call.messages[0]["content"] for call in finished.calls[1:-1]]
    assert orders == [f"{PROMPT}\n\nStrategy: {part}" if part else PROMPT for part in parts]
    assert (finished.score, finished.facts["workers"]) == (1.0, len(parts))
    assert finished.facts["abstained"] is False


def test_published_pays_nobody_for_an_answer_without_a_box():
    texts = replies(PLAN, [RIGHT, RIGHT], "The answer is 14.")
    finished = play("orch_workers_v0", texts, preset="published")
    assert (finished.answer, finished.score) == (None, 0.0)
    assert [call.reward for call in finished.calls] == [0.0] * 4
    assert play("orch_workers_v0", texts, preset="paper").score == 1.0


def test_sequential_workers_see_the_work_of_their_predecessors():
    texts = replies(PLAN, [RIGHT, WRONG], "So \\boxed{14}")
    finished = play("orch_workers_v0", texts, mode="sequential")
    first, second = f"Worker 1 (multiply first):\n{RIGHT}", f"Worker 2 (guess):\n{WRONG}"
    assert [call.messages[0]["content"] for call in finished.calls[1:]] == [
        f"{PROMPT}\n\nStrategy: multiply first",
        f"{PROMPT}\n\n{first}\n\nStrategy: guess",
        f"{PROMPT}\n\n{first}\n\n{second}\n\nWrite the final answer.",
    ]
    assert [(call.phase, call.slot) for call in finished.calls] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert [call.name for call in finished.calls[1:3]] == ["worker", "worker"]
    parallel = play("orch_workers_v0", texts)
    assert [call.reward for call in finished.calls] == [call.reward for call in parallel.calls]
    unplanned = play("orch_workers_v0", replies("", [RIGHT] * 3, RIGHT), mode="sequential")
    assert unplanned.calls[2].messages[0]["content"] == f"{PROMPT}\n\nWorker 1:\n{RIGHT}"
    parts = replies("SUBTASK 1: add\nSUBTASK 2: more", ["\\boxed{5}", "\\boxed{6}"], RIGHT)
    split = play("orch_workers_v0", parts, mode="sequential", split_by="subtasks")
    assert split.calls[2].messages[0]["content"] == (
        "Compute 2+3*4.\n\nWorker 1 (add):\n\\boxed{5}\n\nDo only this part: more\n"
        "Put its result in \\boxed{}."
    )
