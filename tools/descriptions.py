"""Writes what follows from the table of fields of requests: descriptions, and a table of docs:

python -m tools.descriptions
"""

from __future__ import annotations

import json
from pathlib import Path

from flowzoo.envs.door.fields import Surface, field_rows
from flowzoo.envs.door.openapi import describe

FOLDER = Path(__file__).resolve().parents[1] / "docs"


def descriptions() -> dict[str, str]:
    """The texts by file, with an example's names of models, and the table of the documentation."""
    made = {
        "static/openapi-serve.json": describe(
            "flowzoo serve", Surface("serve", ("voting_v0", "generator", "aggregator")), True
        ),
        "static/openapi-door.json": describe("flowzoo's door", Surface("door", ("writer",))),
        "data/request-fields.json": {
            "command": "python -m tools.descriptions",
            "columns": ["field", "API", "agent programs", "`flowzoo serve`"],
            "rows": field_rows(),
        },
    }
    return {name: json.dumps(row, indent=1) + "\n" for name, row in made.items()}


if __name__ == "__main__":
    for name, text in descriptions().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
