"""The conventions that can be chosen, and that the result records them."""

import pickle

from flowzoo.reward import MathOptions, score_batch


def scored(pred: str, gold: str, **options: object) -> float:
    return score_batch([pred], [gold], MathOptions(**options)).scores[0]  # type: ignore[arg-type]


def test_percent():
    assert scored("50", "50%") == 0.0
    assert scored("50%", "50") == 1.0  # data sets drop the sign from their golds
    assert scored("0.5%", "0.5") == 0.0
    assert scored("50", "50%", percent="either") == 1.0
    assert scored("50%", "50", percent="either") == 1.0
    assert scored("0.5", "50%", percent="either") == 1.0
    assert scored("51", "50%", percent="either") == 0.0
    assert scored("\\boxed{50}\\%", "50%") == 1.0
    assert scored("\\boxed{50}\\%", "50") == 1.0


def test_units():
    assert scored("5", "5 cm") == 1.0
    assert scored("5", "5 cm", units="required") == 0.0
    assert scored("5 centimeters", "5 cm", units="required") == 1.0
    assert scored("5 km", "5 cm") == 0.0
    assert scored("5 km", "5 cm", units="ignored") == 1.0


def test_order_of_lists():
    assert scored("2, 1", "1, 2") == 1.0
    assert scored("2, 1", "1, 2", lists="strict") == 0.0
    assert scored("\\{2, 1\\}", "\\{1, 2\\}", lists="strict") == 1.0


def test_digits():
    assert scored("0.33333", "1/3") == 0.0
    assert scored("0.333333", "1/3") == 1.0
    assert scored("0.333334", "1/3") == 0.0
    assert scored("0.333", "1/3", digits=3) == 1.0
    assert scored("1.414214", "\\sqrt{2}") == 1.0
    assert scored("1.414213", "\\sqrt{2}") == 0.0
    assert scored("0.30000000000000004", "0.3") == 0.0
    assert scored("5.001", "5") == 0.0


def test_order_of_sources():
    text = "\\boxed{1}, the answer is 2."
    assert scored(text, "2") == 0.0
    assert scored(text, "2", order=("phrase", "box")) == 1.0


def test_the_result_records_the_options_and_survives_pickling():
    options = MathOptions(percent="either")
    result = pickle.loads(pickle.dumps(score_batch(["1"], ["1"], options)))
    scores, statuses = result
    assert (scores, statuses, result.options) == ([1.0], ["equal"], options)
