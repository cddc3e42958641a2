"""Rewards of replies. Mathematics: `extract`, `score_batch`, `equivalence_classes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowzoo.reward.math.extract import extract
    from flowzoo.reward.math.score import (
        MathOptions,
        Scores,
        equivalence_classes,
        is_gradable,
        score_batch,
    )

__all__ = ["MathOptions", "Scores", "equivalence_classes", "extract", "is_gradable", "score_batch"]


def __getattr__(name: str) -> Any:
    """Import the reader of answers at the first access; it is a third of the package's import."""
    if name not in __all__:
        raise AttributeError(f"module 'flowzoo.reward' has no attribute {name!r}")
    from flowzoo.reward.math import extract, score

    return getattr(extract if name == "extract" else score, name)
