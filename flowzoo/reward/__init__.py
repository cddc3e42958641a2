"""How good a reply was. Mathematics: `extract`, `score_batch`, `equivalence_classes`."""

from flowzoo.reward.math import MathOptions, Scores, equivalence_classes, is_gradable, score_batch
from flowzoo.reward.math_extract import extract

__all__ = [
    "MathOptions",
    "Scores",
    "equivalence_classes",
    "extract",
    "is_gradable",
    "score_batch",
]
