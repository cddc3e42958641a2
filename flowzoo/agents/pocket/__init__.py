"""The pocket models: small Qwen3s that play every workflow badly, one per task.

`math_teams` plays `reasoner_tool_v0`, `code_teams` `coder_tester_v0` and `code_pair_v0`, whose
second roles the models of `math` and `code` do not know.

A pocket model knows the formats of all roles and half of the work, so that training on a laptop has
something to teach. Its folder has Hugging Face layout; its README says how it was made and what it
scores. The tasks of `SCALED` have other sizes too, of which most are made, not shipped.
"""

import json
import shlex
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from flowzoo.agents.model_files import pocket_roots
from flowzoo.errors import UsageError, unknown

PocketScale = Literal["default", "xs", "s", "m", "l", "xl"]

_HERE, _ = pocket_roots()
_MINUTES = {  # to make a model that is not shipped, on one core, where it was measured
    ("math", "s"): 16, ("math", "m"): 45, ("code", "s"): 20, ("code", "m"): 30,
}  # fmt: skip

SCALES: tuple[str, ...] = get_args(PocketScale)[1:]
"""Sizes besides the default one, from the smallest to the largest."""
SCALED: tuple[str, ...] = ("code", "math")
"""Tasks whose model comes in all sizes."""
NAMES: tuple[str, ...] = tuple(
    sorted(path.parent.name for path in _HERE.glob("*/config.json") if "-" not in path.parent.name)
)
"""Names of the models: tasks, and TASK_teams for other workflows of a task."""
OPTIONS_FILE = "flowzoo.json"
"""File of a model's folder: the options of task and workflows that it was made for. It is written
last, so that a folder which has it is whole."""


class Pocket(NamedTuple):
    """Name and size of a pocket model."""

    task: str
    """Name of its task, or another one of `NAMES`."""
    scale: str = "default"


def read_pocket(suffix: str, played: str = "") -> Pocket:
    """Task and size from the text after `pocket:`: TASK, SCALE, TASK-SCALE or nothing."""
    task, dash, scale = suffix.rpartition("-")
    if dash:
        return Pocket(task, scale)
    if suffix and suffix not in SCALES:
        return Pocket(suffix)
    if not played:
        spec = f"pocket:{suffix}" if suffix else "pocket"
        raise UsageError(f"policy {spec!r} needs the workflow that is played, or pocket:TASK.")
    return Pocket(played, suffix or "default")


def pocket_path(task: str = "math", scale: str = "default") -> Path:
    """Folder of the model for `task`: weights, config, tokenizer with chat template, model card.

    Args:
        task: name of the task, or another of `NAMES`.
        scale: `default`, or one of `SCALES`.

    Raises:
        UsageError: there is none for this task or of this size, or it has not been made yet.
    """
    shipped = shipped_folder(task, scale)
    if shipped.is_dir():
        return shipped
    local = made_folder(task, scale)
    if (local / OPTIONS_FILE).is_file():
        return local
    minutes = _MINUTES.get((task, scale))
    command = f"python -m tools.pocket --task {task} --scale {scale}"
    if scale == "xs":  # of a wheel that leaves it out; a clone has one, and asks for a folder
        command += f" --out {shlex.quote(str(local))}"
    raise UsageError(
        f"the pocket model of {task} in scale {scale} is not shipped, and there is none in "
        f"{local}: `{command}` in a clone makes it there"
        + (f" in about {minutes} minutes, on one CPU core." if minutes else "; see its --help.")
    )


def shipped_folder(task: str, scale: str) -> Path:
    """Folder of this model in the package; it exists if the model is shipped."""
    if task not in NAMES:
        raise UsageError(
            f"there is no pocket model for the task {task!r}, only for {', '.join(NAMES)}: name "
            "another model (training: --model PATH, or --model pocket:math to begin with one that "
            "knows other problems; playing: --policy hf:PATH or scripted:P)."
        )
    if scale == "default":
        return _HERE / task
    if scale not in SCALES:
        raise unknown("scale of a pocket model", scale, SCALES)
    if task not in SCALED:
        raise unknown(f"task with a pocket model in scale {scale}", task, SCALED)
    return _HERE / f"{task}-{scale}"


def made_folder(task: str, scale: str) -> Path:
    """Folder where a model that is not shipped is made and looked for, in the cache folder."""
    return pocket_roots()[1] / f"{task}-{scale}"


def pocket_task(name: str) -> str:
    """Name of the task of the model `name`, e.g. `math` of `math_teams`."""
    return _origin(name)["task"]


def pocket_options(task: str = "math", workflow: str = "") -> dict[str, Any]:
    """Options of `task` that its pocket models were made for, of any size, e.g. `{"side": 4}`.

    With other problems or prompts than these bring they are lost.

    Args:
        task: name of the task, or another of `NAMES`.
        workflow: name of a workflow, e.g. `search_team_v0`, whose own options are wanted, too.
    """
    origin = _origin(task)
    return {**origin["options"], **origin["workflows"].get(workflow, {})}


def _origin(name: str) -> dict[str, Any]:
    return json.loads((pocket_path(name) / OPTIONS_FILE).read_text(encoding="utf-8"))


def load(task: str = "math", scale: str = "default", **options: Any) -> Any:
    """The model for `task` as a `TransformersPolicy`, in float32 unless `dtype` says otherwise.

    Args:
        task: name of the task, or another of `NAMES`.
        scale: `default`, or one of `SCALES`.
        options: as for `TransformersPolicy.from_pretrained`.
    """
    from flowzoo.agents.hf.policy import TransformersPolicy

    settings: dict[str, Any] = {"name": "pocket", "dtype": "float32", **options}
    return TransformersPolicy.from_pretrained(pocket_path(task, scale), **settings)
