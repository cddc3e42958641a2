"""Tables of `docs/models.md`: families of models, tiny and random, and what doctor says of a model.

python -m benchmarks.model_checks families
python -m benchmarks.model_checks models/SmolLM2-135M-Instruct.Q4_1.gguf --name smollm2

Afterwards `python docs/figures.py` writes them into the page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from flowzoo.agents.traits import borders_of
from flowzoo.commands.doctor import examine_named
from tests.baselines.learner.test_families import FAMILIES, learner_gap, sampling_gap, whole

DATA = Path(__file__).resolve().parent.parent / "docs" / "data"


def family_row(name: str) -> list[str]:
    """A family's borders, and how far its log-probs in batches are from those of rows alone."""
    family = FAMILIES[name]
    borders = ", ".join(map(str, borders_of(whole(name).config)))
    return [
        name, borders,
        f"{learner_gap(name, 'packed'):.0e}" if family.packed else "refused",
        f"{learner_gap(name, 'padded'):.0e}",
        f"{sampling_gap(name):.0e}" if family.samples else "refused",
    ]  # fmt: skip


def write(name: str, command: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table of the documentation."""
    cells = [[cell.replace("|", "\\|").replace("<", "\\<") for cell in row] for row in rows]
    table = {"command": command, "columns": columns, "rows": cells}
    text = json.dumps(table, ensure_ascii=False, indent=1)
    (DATA / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


def main() -> None:
    """Write the table that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="`families`, or a model as `flowzoo doctor --model` takes it")
    parser.add_argument("--name", default="model", help="of the table of a model")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.model == "families":
        columns = ["family", "borders", "packed rows", "padded rows", "sampled"]
        command = "python -m benchmarks.model_checks families"
        write("model-families", command, columns, [family_row(name) for name in FAMILIES])
        return
    rows = [
        [row.name, "ok" if row.ok else "fault", row.detail] for row in examine_named(given.model)
    ]
    command = f"python -m benchmarks.model_checks MODEL --name {given.name}"
    write(f"model-{given.name}", command, ["check", "state", "found"], rows)


if __name__ == "__main__":
    main()
