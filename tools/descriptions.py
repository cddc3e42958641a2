"""Writes the OpenAPI descriptions of the servers into `docs/static`:

python -m tools.descriptions
"""

from __future__ import annotations

import json
from pathlib import Path

from flowzoo.agents.serving.parameters import NEUTRAL, OBEYED
from flowzoo.envs.door.openapi import describe
from flowzoo.envs.door.wire import KINDS, NOTES, UNSUPPORTED

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "static"


def descriptions() -> dict[str, str]:
    """The texts by file, with an example's names of models."""
    kinds, models = {**OBEYED, **NOTES}, ["voting_v0", "generator", "aggregator"]
    made = {
        "serve": describe("flowzoo serve", kinds, NEUTRAL, models, one_model=True),
        "door": describe("flowzoo's door", KINDS, UNSUPPORTED, ["writer"], tools=True),
    }
    return {f"openapi-{name}.json": json.dumps(row, indent=1) + "\n" for name, row in made.items()}


if __name__ == "__main__":
    for name, text in descriptions().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
