"""Rewards of replies. Mathematics: `extract`, `score_batch`, `equivalence_classes`."""

from flowzoo.reward.math.extract import extract
from flowzoo.reward.math.score import (
    MathOptions,
    Scores,
    equivalence_classes,
    is_gradable,
    score_batch,
)

__all__ = ["MathOptions", "Scores", "equivalence_classes", "extract", "is_gradable", "score_batch"]
