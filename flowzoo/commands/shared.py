"""Argument checks and the program name, shared by commands."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowzoo.agents.evaluation.summary import measure_name, refuse_evaluation
from flowzoo.agents.model_files import hide_bars
from flowzoo.envs.settings import check_whole
from flowzoo.errors import UsageError
from flowzoo.extras import is_installed

if TYPE_CHECKING:
    from flowzoo.baselines.settings.config import TrainConfig
    from flowzoo.baselines.settings.sft import SftConfig

MOST = 1_000_000
"""Upper limit of problems and other counts."""


@dataclass(frozen=True, slots=True)
class CodeOptions:
    """Code that files name."""

    trust: bool = False
    """Load functions, classes and programs that only a file names: a run's record, or a TOML file.
    They run with your rights; without this option they are listed and not loaded."""


def check_count(option: str, value: int | None, low: int = 1, high: int = MOST) -> None:
    """Check a count of the command line."""
    if value is not None:
        check_whole(f"--{option}", value, low, high)


def check_folder(option: str, folder: str | Path, given: str | Path = "") -> None:
    """Check that a directory can be created and written before starting work."""
    path, given = Path(folder), given or folder
    label = f"--{option} {given}"
    try:
        there = next(
            parent for parent in (path, *path.absolute().parents) if os.path.lexists(parent)
        )
        if not there.is_dir():
            raise UsageError(f"{label}: {there} exists and is a file: choose another directory")
        is_usable = os.access(there, os.W_OK | os.X_OK)
    except OSError as error:
        raise UsageError(f"{label}: {error.strerror}. Choose another directory.") from error
    if not is_usable:
        raise UsageError(f"{label}: {there} is read-only. Choose another directory.")


def check_start(command: str, settings: TrainConfig | SftConfig) -> None:
    """Check that settings name a workflow, and a directory in which a run can begin or go on."""
    if not settings.workflow:
        other = ", --program, --env, or a file that does (--config)"
        other = ", or --program" if command == "sft" else other
        raise UsageError(f"name a workflow, e.g. `flowzoo {command} voting`{other}")
    check_folder("out", settings.directory)
    refuse_evaluation(settings.directory, "choose another --out")


def check_run(folder: Path) -> None:
    """Check that a folder is a run directory."""
    if not (folder / "run.json").is_file():
        near = [path.parent for path in sorted(folder.glob("*/run.json"))[:3]]
        hint = f"; {', '.join(map(str, near))} are some" if near else ""
        raise UsageError(f"{folder} is not a run directory: it has no run.json{hint}")
    refuse_evaluation(folder, "name the directory of one")


def held_out_line(summary: Mapping[str, Any]) -> str:
    """Accuracy (of games the score, and the pay of each role) before and after, and its gain."""
    before, after = (100 * summary[f"accuracy_{name}"] for name in ("before", "after"))
    levels = f"{measure_name('pay' in summary)} {before:.1f} % -> {after:.1f} %"
    lines = [f"held-out {levels}, gain {points(summary['gain'])}"]
    for role, pay in summary.get("pay", {}).items():
        line = f"pay of {role}: {_level(pay['before'])} -> {_level(pay['after'])}"
        if gain := pay["gain"]:
            mean, low, high = (gain[name] for name in ("mean", "low", "high"))
            line += f", gain {mean:+.3f} ({_ends(low, high, '+.3f')})"
        lines.append(line)
    return "\n".join(lines)


def _level(pay: Sequence[float | None]) -> str:
    mean, low, high = pay
    return f"{mean:.3f}" + ("" if low is None else f" ({low:.3f} to {high:.3f})")


def _ends(low: float, high: float, form: str) -> str:
    if low == high:
        return "no interval, since all differences are equal"
    return f"95 % interval {low:{form}} to {high:{form}}"


def pay_words(row: Mapping[str, object]) -> str:
    """The held-out pay of every role in a row of metrics; empty without pay."""
    start = "eval/pay/"
    pays = [f"{name.removeprefix(start)} {row[name]:.3f}" for name in row if name.startswith(start)]
    return f", pay: {', '.join(pays)}" if pays else ""


def points(gain: Mapping[str, float]) -> str:
    """A gain in points with its interval."""
    mean, low, high = (100 * gain[name] for name in ("mean", "low", "high"))
    return f"{mean:+.1f} points ({_ends(low, high, '+.1f')})"


def program_name() -> str:
    """Command for this program: `flowzoo`, or its path if another program has that name."""
    # `make train` runs it in an environment without activating it.
    script, installed = Path(sys.argv[0]), shutil.which("flowzoo")
    is_installed_one = installed and Path(installed).resolve() == script.resolve()
    if script.name != "flowzoo" or is_installed_one:
        return "flowzoo"
    return shlex.quote(str(script))


def quiet_transformers() -> None:
    """Hide warnings of transformers, if it is installed, and its progress bars in logs."""
    if is_installed("transformers"):
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        hide_bars()
