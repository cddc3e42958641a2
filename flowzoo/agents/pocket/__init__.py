"""The shipped pocket models: Qwen3s of under a million parameters that play every workflow badly.

There is one per task, each in a folder of that name in Hugging Face layout (its README says how it
was made and what it scores); any engine can load it. A pocket model knows the formats of all roles
and half of the work, so that training on a laptop has something to teach. Some play small problems
only: `pocket_options` says which. Importing this loads no training library.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flowzoo.errors import unknown

_HERE = Path(__file__).parent

TASKS: tuple[str, ...] = tuple(sorted(path.parent.name for path in _HERE.glob("*/config.json")))
"""Tasks that have a pocket model."""
OPTIONS_FILE = "flowzoo.json"
"""File of a model's folder: the options of task and workflows that it was made for."""


def pocket_path(task: str = "math") -> Path:
    """Folder of the model for `task`: weights, config, tokenizer with chat template, model card.

    Raises:
        UsageError: there is none for this task.
    """
    if task not in TASKS:
        raise unknown("task with a pocket model", task, TASKS)
    return _HERE / task


def pocket_options(task: str = "math", workflow: str = "") -> dict[str, Any]:
    """Options of `task` that its pocket model was made for, e.g. `{"side": 4}`.

    With other problems or prompts than these bring it is lost.

    Args:
        task: name of the task.
        workflow: name of a workflow, e.g. `search_team_v0`, whose own options are wanted, too.

    Raises:
        UsageError: there is no model for this task.
    """
    made = json.loads((pocket_path(task) / OPTIONS_FILE).read_text(encoding="utf-8"))
    return {**made["options"], **made["workflows"].get(workflow, {})}


def load(task: str = "math", **options: Any) -> Any:
    """The model for `task` as a `TransformersPolicy`, in float32 unless `dtype` says otherwise.

    Args:
        task: name of the task.
        options: as for `TransformersPolicy.from_pretrained`.

    Raises:
        UsageError: there is no model for this task.
        MissingExtra: the extra `train` is not installed.
    """
    from flowzoo.agents.hf import TransformersPolicy

    return TransformersPolicy.from_pretrained(
        pocket_path(task), **{"name": "pocket", "dtype": "float32", **options}
    )
