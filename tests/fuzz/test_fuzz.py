"""A minute of spoiled files and messages; `python tests/fuzz/rounds.py` takes as long as it may."""

import pytest
from fuzz.rounds import fuzz
from fuzz.targets import TARGETS

EXAMPLES = {
    "run": 4,
    "trained": 3,
    "transcripts": 8,
    "settings": 8,
    "gguf": 8,
    "model": 8,
    "mcp": 6,
}
"""Numbers of examples of the slow ones."""


@pytest.mark.parametrize("name", TARGETS)
def test_spoiled_content_is_a_value_or_one_line(name, tmp_path, monkeypatch):
    monkeypatch.setenv("FLOWZOO_CACHE", str(tmp_path))
    fuzz(TARGETS[name], EXAMPLES.get(name, 15), 0)
