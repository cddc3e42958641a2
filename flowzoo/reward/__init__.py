"""Rewards of replies. Mathematics: `extract`, `score_batch`, `equivalence_classes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowzoo.lazy import lazy_names

if TYPE_CHECKING:
    from flowzoo.reward.math.extract import extract as extract
    from flowzoo.reward.math.options import MathOptions as MathOptions
    from flowzoo.reward.math.score import Scores as Scores
    from flowzoo.reward.math.score import equivalence_classes as equivalence_classes
    from flowzoo.reward.math.score import is_gradable as is_gradable
    from flowzoo.reward.math.score import score_batch as score_batch

__all__, __getattr__, __dir__ = lazy_names(__name__, {
    "math.extract": "extract",
    "math.options": "MathOptions",
    "math.score": "Scores equivalence_classes is_gradable score_batch",
})  # fmt: skip
