"""`flowzoo new`: a package with a workflow, a task or both, as a starting point."""

import importlib.util
import keyword
import os
import re
import shlex
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Literal, NamedTuple

from flowzoo.commands.shared import program_name
from flowzoo.envs.api.registry import workflow_names
from flowzoo.envs.tasks import task_names
from flowzoo.errors import UsageError
from flowzoo.extras import PUBLISHED, REPOSITORY

TEMPLATES = Path(__file__).parent / "templates"
_NAME = re.compile(r"[a-z][a-z0-9]*(?:_[a-z][a-z0-9]*)*")
_VERSION = re.compile(r"(?P<base>.+)_v(?P<number>\d+)")


class NewNames(NamedTuple):
    """Names of the parts of a new package."""

    module: str
    """Name of the module, the folder and the distribution."""
    cls: str
    entry: str
    """Short name in flowzoo."""
    task: str = "math"
    """Default task of a workflow."""
    task_cls: str = "MathTask"


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo new`."""

    what: Literal["workflow", "task", "package"] = field(
        metadata={"positional": "{workflow,task,package}"}
    )
    """Content: one workflow, one task, or a package of both with a file for CI."""
    name: str = field(metadata={"positional": "NAME"})
    """Short name in lower case, e.g. `debate`; also the name of the folder and the module."""
    into: Path = Path()
    """Parent folder of the package."""


def run(options: Options) -> int:
    """Write the package and print the next steps."""
    names = names_of(options.what, options.name)
    folder = create_package(options.what, names, options.into)
    target, tests = shlex.quote(str(folder)), shlex.quote(f"{folder}[test]")
    print(
        f"{folder} contains a working {options.what}. Change it, and run its tests:\n"
        f"  pip install -e {tests} && python -m pytest {target}\n"
        f"  {program_name()} play {names.entry} --policy scripted:0.8"
    )
    return 0


def names_of(what: str, name: str) -> NewNames:
    """Names of the parts of a package for a workflow or task `name`."""
    match = _VERSION.fullmatch(name) if what != "task" else None
    base, number = (match["base"], match["number"]) if match else (name, "0")
    if not _NAME.fullmatch(base) or keyword.iskeyword(base):
        raise UsageError(
            f"name {name!r}: expected lower-case letters, digits and single underscores, starting "
            "with a letter, e.g. debate or word_count, and not a Python keyword."
        )
    entry = base if what == "task" else f"{base}_v{number}"
    used = {*workflow_names(), *task_names()}
    if entry in used or base in used:
        raise UsageError(f"name {name!r}: workflow or task {entry!r} already exists.")
    spec = importlib.util.find_spec(base)
    if spec is not None and spec.origin is not None:  # a plain folder is not a module
        raise UsageError(
            f"name {name!r}: the new module would hide the existing Python module {base!r}; choose "
            "another name."
        )
    camel = "".join(part.capitalize() for part in base.split("_"))
    if what == "package":
        task = names_of("task", f"{base}_words")
        return NewNames(base, camel, entry, task.entry, task.cls)
    return NewNames(base, camel + ("Task" if what == "task" else ""), entry)


def files_of(what: str, names: NewNames) -> dict[str, str]:
    """Texts of the files of a new package, by path in its folder."""
    templates = sorted(path for path in (TEMPLATES / what).rglob("*") if path.is_file())
    files = {
        str(path.relative_to(TEMPLATES / what)).replace("NAME", names.module): _fill(path, names)
        for path in templates
    }
    if what == "package":  # the files of a workflow and of a task, as modules of the package
        workflow = names._replace(module=f"{names.module}.workflow")
        task = NewNames(f"{names.module}.task", names.task_cls, names.task)
        for kind, part in (("workflow", workflow), ("task", task)):
            for name, target in (
                ("NAME.py.txt", f"{names.module}/{kind}.py"),
                ("test_NAME.py.txt", f"tests/test_{kind}.py"),
            ):
                files[target] = _fill(TEMPLATES / kind / name, part)
    return {path.removesuffix(".txt"): text for path, text in files.items()}


def _fill(template: Path, names: NewNames) -> str:
    source = "flowzoo" if PUBLISHED else f"flowzoo @ git+{REPOSITORY}"
    text = Template(template.read_text(encoding="utf-8"))
    return text.substitute(names._asdict(), flowzoo=source)


def create_package(what: str, names: NewNames, into: Path) -> Path:
    """Write the files of a new package into `into / MODULE`, and return that folder."""
    # It is created atomically; a failure leaves no files.
    folder = into / names.module
    if os.path.lexists(folder):
        raise UsageError(f"{folder} already exists: choose another name, or --into.")
    try:
        into.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{names.module}.", dir=into))
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder}: {error.strerror}.") from None
    try:
        for target, text in files_of(what, names).items():
            path = draft / target
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        draft.chmod(0o755)  # default permissions, since a temporary folder is private
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder
