"""The shipped pocket model: a Qwen3 of under a million parameters that plays every workflow badly.

It knows the formats of all roles and half of its arithmetic, so that training on a laptop has
something to teach. `model/` is in Hugging Face layout (its README says how it was made and what it
scores); any engine can load it. Importing this loads no training library.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

POCKET: Path = Path(__file__).parent / "model"
"""Folder of the shipped model: weights, config, tokenizer with chat template, model card."""


def load(**options: Any) -> Any:
    """The shipped model as a `TransformersPolicy`, in float32 unless `dtype` says otherwise.

    Args:
        options: as for `TransformersPolicy.from_pretrained`.

    Raises:
        MissingExtra: the extra `train` is not installed.
    """
    from flowzoo.agents.hf import TransformersPolicy

    return TransformersPolicy.from_pretrained(
        POCKET, **{"name": "pocket", "dtype": "float32", **options}
    )
