"""Reading the answer out of a reply: strict, lenient, hostile."""

import pytest

from flowzoo.errors import UsageError
from flowzoo.reward import extract
from flowzoo.reward.math import extract as math_extract

STRICT = [
    ("so \\boxed{42}.", "42"),
    ("\\boxed{1} then \\boxed{2}", "2"),
    ("\\boxed{1} so \\fbox{2}", "2"),
    ("\\fbox{1} so \\boxed{2}", "2"),
    ("\\boxed{1} and \\fbox{2}", "1, 2"),
    ("\\boxed{1}, \\boxed{2},\\ \\boxed{3}", "1, 2, 3"),
    ("\\(\\boxed{1}\\) and \\(\\boxed{-2}\\).", "1, -2"),
    ("$\\boxed{1} \\quad \\text{or} \\quad \\boxed{2}$", "1, 2"),
    ("\\boxed{1}, \\boxed{1}", "1"),
    ("\\boxed{1}\n\\boxed{2}", "2"),
    ("\\boxed{1}, but no: \\boxed{2}", "2"),
    ("\\boxed{1} = \\boxed{2}", "2"),
    ("\\boxed{1}, \\boxed{}", None),
    ("\\\\boxed{3}", "3"),
    ("\\boxed{10}\\%", "10"),
    ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
    ("\\boxed {7}", "7"),
    ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
    ("\\boxed{\\left\\{ x \\right.}", "\\left\\{ x \\right."),
    ("\\boxed{5} and then \\boxed{6", "5"),
    ("\\boxed{\\boxed{43}}", "43"),
    ("<think>\\boxed{1}</think> \\boxed{2}", "2"),
    ("a</think>b</think>\\boxed{3}", "3"),
    ("\\boxed{5} \\boxed{}", None),
    ("It is \\boxed{1.8}.\n\nPut the final answer in \\boxed{}.", "1.8"),
    ("\\boxed{1}, \\boxed{2}. Put the final answer in $\\boxed{ }$.", "1, 2"),
    ("The answer is 5. Put the final answer in \\boxed{}.", None),
    ("\\boxed{5}, or in the end \\boxed{}", None),
    ("\\boxed{", None),
    ("\\boxed5", None),
    ("<think>\\boxed{1}</think> nothing", None),
    ("<think> so \\boxed{1}", None),
    ("</think><think>\\boxed{1}", None),
    ("The answer is 5.", None),
    ("42", None),
    ("", None),
]
LENIENT = [
    ("\\boxed{3}. The answer is 5.", "3"),
    ("The answer is 5. I am sure of 6.", "5"),
    ("The answer is **-3/4**.", "-3/4"),
    ("Final answer: $x+1$, done", "x+1"),
    ("the ANSWER IS:\n12", "12"),
    ("work 3\n#### 1,234", "1,234"),
    ("first 3, then 4,500.5, end", "4,500.5"),
    ("it is 3/4", "3/4"),
    ("no digits here", None),
    ("Final Answer: The largest $n$ is 34.", "34"),
    ("The answer is $x > 5$, of course", "x > 5"),
    ("\\boxed{}: 5", None),
]


AUTO = [
    ("\\boxed{3} or $5$", "3"),
    ("42", "42"),
    ("$40$ or $41$ or $42$", "$40$ or $41$ or $42$"),
    ("odd $n$", "odd $n$"),
    ("Thus $x \\ge 5$ holds.", "x \\ge 5"),
    ("Therefore it is 2/3.", "2/3"),
    ("I think 3 + 4.\n7", "7"),
    ("There are 12 of them. I hope it is correct.", "12"),
    ("It is 5. <|im_end|>", "5"),
    ("The question mentions 42. I do not know.", None),
    ("how many $? just about 1$", "1"),
    ("$$\n9\n$$", "$$\n9\n$$"),
    ("Evelyn", "Evelyn"),
    ("   ", None),
]


@pytest.mark.parametrize(("text", "answer"), AUTO)
def test_auto_reads_replies_and_bare_answers(text: str, answer: str | None) -> None:
    assert extract(text, "auto") == answer


def test_the_order_of_sources_can_be_chosen() -> None:
    text = "\\boxed{1} #### 2\nThe answer is 3. So 4 of them."
    assert extract(text, order=("hashes", "box")) == "2"
    assert extract(text, order=("phrase", "box")) == "3"
    assert extract(text, order=("number",)) == "4"
    assert extract("The answer is 3.", order=("box", "phrase")) == "3"
    assert extract("\\boxed{}. The answer is 3.", order=("box", "phrase")) is None
    with pytest.raises(UsageError, match="hashes"):
        extract(text, order=("hash",))  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "answer"), STRICT)
def test_strict_is_the_last_balanced_box(text: str, answer: str | None) -> None:
    assert extract(text) == answer


@pytest.mark.parametrize(("text", "answer"), LENIENT)
def test_lenient_falls_back_in_order(text: str, answer: str | None) -> None:
    assert extract(text, "lenient") == answer


def test_a_thought_that_never_ends_hides_the_box_beyond_the_tail_too() -> None:
    assert extract("<think>" + "word " * 20_000 + "\\boxed{1}") is None
    assert extract("word " * 20_000 + "\\boxed{1}") == "1"
    assert extract("\\boxed{1}" + "word " * 20_000) is None


def test_unknown_mode_names_the_choices() -> None:
    with pytest.raises(UsageError, match="strict"):
        extract("1", "strickt")  # type: ignore[arg-type]


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 100_000, "{" * 600_000 + "\\boxed{" + "{" * 150_000, "\\" * 1_000_000,
        "9" * 1_000_000, "\\boxed{" + "9" * 1_000_000 + "}", "answer is " * 100_000,
        "$" * 1_000_000, "\x00\ud800\udfff\u202e\\boxed{\ud800}", "a $ " * 200_000, "1," * 500_000,
        "\\boxed{1}, " * 200_000 + "\\boxed{2}", "\\[ " * 200_000, "$1$ and " * 150_000 + "$2$",
        "final answer is " * 80_000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["strict", "lenient", "auto"])
def test_hostile_text_is_read_in_linear_time(
    text: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(math_extract, "TAIL", len(text))  # or most of it would not be read at all
    answer = extract(text, mode)  # type: ignore[arg-type]
    assert answer is None or answer.split(",")[-1].strip() in text
