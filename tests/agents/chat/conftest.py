"""A pocket model's tokenizer, loaded once."""

from collections.abc import Iterator
from typing import Any

import pytest
from transformers import AutoTokenizer

from flowzoo.agents.pocket import pocket_path


@pytest.fixture(scope="session")
def loaded() -> Any:
    return AutoTokenizer.from_pretrained(pocket_path("math"))


@pytest.fixture
def tokenizer(loaded: Any) -> Iterator[Any]:
    """The tokenizer, whose chat template a test may replace."""
    template = loaded.chat_template
    yield loaded
    loaded.chat_template = template
