"""Reading the answer out of a reply: strict, lenient, hostile."""

import pytest

from flowzoo.errors import UsageError
from flowzoo.reward import extract
from flowzoo.reward.math import extract as math_extract
from tests.tables import read_tables, readings


@pytest.mark.parametrize(("mode", "text", "answer"), readings(read_tables(__file__, "extract")))
def test_each_mode_reads_what_it_should(mode, text, answer):
    assert extract(text, mode) == answer


def test_the_order_of_sources_can_be_chosen():
    text = "\\boxed{1} #### 2\nThe answer is 3. So 4 of them."
    assert extract(text, order=("hashes", "box")) == "2"
    assert extract(text, order=("phrase", "box")) == "3"
    assert extract(text, order=("number",)) == "4"
    assert extract("The answer is 3.", order=("box", "phrase")) == "3"
    assert extract("\\boxed{}. The answer is 3.", order=("box", "phrase")) is None
    with pytest.raises(UsageError, match="hashes"):
        extract(text, order=("hash",))  # type: ignore[arg-type]


def test_a_thought_that_never_ends_hides_the_box_beyond_the_tail_too():
    assert extract("<think>" + "word " * 20_000 + "\\boxed{1}") is None
    assert extract("word " * 20_000 + "\\boxed{1}") == "1"
    assert extract("\\boxed{1}" + "word " * 20_000) is None


def test_unknown_mode_names_the_choices():
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
def test_hostile_text_is_read_in_linear_time(text, mode, monkeypatch):
    monkeypatch.setattr(math_extract, "TAIL", len(text))  # or most of it would not be read at all
    answer = extract(text, mode)  # type: ignore[arg-type]
    assert answer is None or answer.split(",")[-1].strip() in text
