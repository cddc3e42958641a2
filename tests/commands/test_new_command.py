"""A package outside the repository's import path, installed with pip, that adds a workflow,
a task and an engine by entry points (`relay_pack`), in every command."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from flowzoo import cli, plugins
from flowzoo.cli import main
from flowzoo.envs.api import registry
from flowzoo.errors import UsageError
from flowzoo.extras import REPOSITORY

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def packages(tmp_path, capsys) -> Path:
    """A folder with a workflow, a task and a package of both as they are generated."""
    for args in (["workflow", "second_opinion"], ["task", "first_word"], ["package", "panel"]):
        assert main(["new", *args, "--into", str(tmp_path)]) == 0
    assert "flowzoo play second_opinion_v0" in capsys.readouterr().out
    return tmp_path


def test_a_package_passes_its_tests_as_generated(packages):
    names = {path.name for path in (packages / "first_word").iterdir()}
    assert names == {"pyproject.toml", "README.md", "first_word.py", "test_first_word.py"}
    for path in packages.rglob("*.*"):
        assert not path.name.endswith(".txt")
        assert path.is_dir() or "$" not in path.read_text().replace("${{ matrix.python }}", "")
    assert "5 passed" in run_tests(packages, ".", "--ignore", "panel")


def test_a_package_of_both_passes_its_tests_as_generated(packages):
    panel = packages / "panel"
    names = {path.relative_to(panel).as_posix() for path in panel.rglob("*") if path.is_file()}
    assert names == {
        "pyproject.toml", "README.md", ".github/workflows/test.yml", "panel/__init__.py",
        "panel/workflow.py", "panel/task.py", "tests/test_workflow.py", "tests/test_task.py",
    }  # fmt: skip
    # Its entry points are those of an installed package: a folder of metadata on the path.
    project = tomllib.loads((panel / "pyproject.toml").read_text())["project"]
    metadata = panel / "panel-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: panel\nVersion: 0.1.0\n")
    points = project["entry-points"].items()
    (metadata / "entry_points.txt").write_text(
        "".join(f"[{g}]\n" + "".join(f"{k} = {v}\n" for k, v in e.items()) for g, e in points)
    )
    assert "5 passed" in run_tests(panel)
    (job,) = yaml.safe_load((panel / ".github/workflows/test.yml").read_text())["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands == [
        f'pip install "flowzoo @ git+{REPOSITORY}" -e ".[test]"',
        "python -m pytest",
    ]


def run_tests(folder: Path, *args: str) -> str:
    """Output of pytest in a folder, with the source of flowzoo on the path."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_what_is_generated_is_in_the_style_of_the_house(packages):
    ruff = Path(sys.executable).with_name("ruff")
    for args in (["check", "--ignore", "D100,D103"], ["format", "--check"]):
        config = ["--config", str(ROOT / "pyproject.toml")]
        done = subprocess.run([ruff, *args, *config, packages], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.full
def test_installed_they_have_their_names(packages, tmp_path):
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    folders = [str(packages / name) for name in ("second_opinion", "first_word", "panel")]
    subprocess.run([*install, "--target", str(site), *folders], check=True, capture_output=True)
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{site}"}
    for line, output in (
        ("play second_opinion --task first_word --policy scripted:1", "score 1"),
        ("play panel --policy scripted:1", "panel_words"),
        ("list", "panel 0.1.0"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "flowzoo.cli", *line.split()],
            env=env,
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        assert output in done.stdout
    # Editable, it is found by its path: a finder would lose to that folder in `packages`.
    subprocess.run([*install, "--prefix", str(tmp_path), "-e", folders[0]], check=True)
    assert list(tmp_path.rglob("site-packages/__editable__.second_opinion-*.pth"))


def test_nothing_is_overwritten(packages, capsys):
    assert main(["new", "task", "first_word", "--into", str(packages)]) == 2
    assert "already exists" in capsys.readouterr().err


def test_a_version_may_be_given(tmp_path):
    assert main(["new", "workflow", "another_look_v3", "--into", str(tmp_path)]) == 0
    text = (tmp_path / "another_look" / "another_look.py").read_text()
    assert 'name = "another_look_v3"' in text
    assert "class AnotherLook(Workflow)" in text


FULL = """
import resource, sys
from flowzoo.cli import main
from flowzoo.extras import REPOSITORY
resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))  # as a disk that is full after the first file
sys.exit(main(["new", "workflow", "tiebreak"]))
"""


def test_a_full_disk_leaves_nothing(tmp_path):
    args = [sys.executable, "-B", "-c", FULL]
    done = subprocess.run(args, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "Free space there, or choose another directory." in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


# -- A package with a workflow, a task and an engine (`relay_pack`), installed with pip ------------


PACK = Path(__file__).with_name("relay_pack")
WARM = Path(__file__).parents[1] / "baselines" / "warm.py"

RUN_LINES = """
import contextlib, io, json, sys
from flowzoo import cli
for line in json.loads(sys.stdin.read()):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main(line.split())
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package."""
    source = tmp_path_factory.mktemp("pack") / "source"
    shutil.copytree(PACK, source, ignore=shutil.ignore_patterns("__pycache__"))
    target = source.with_name("site")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--no-compile"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", target, source]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def python(site: Path, args: list[str], cwd: Path, stdin: str = "") -> str:
    """Output of Python where the package is installed."""
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, *args],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


FORKING = f"""
import runpy
import flowzoo.baselines.training.trainer
from types import SimpleNamespace
from flowzoo.baselines.matrix import jobs, run
run.MIN_FORKED_RUNS = 10**9
fork = runpy.run_path({str(WARM)!r}, run_name="warm")["Fork"]
jobs.subprocess = SimpleNamespace(Popen=fork, DEVNULL=jobs.subprocess.DEVNULL)
"""
"""Lets the runs of a matrix be forks of the process itself, which imports what they need once."""


def commands(site: Path, lines: list[str], cwd: Path, before: str = "") -> list[list]:
    """Status, output and errors of command lines, in one process that does `before` first."""
    texts = python(site, ["-c", before + RUN_LINES], cwd, json.dumps(lines))
    return [json.loads(row) for row in texts.splitlines()]


def test_it_is_listed_played_and_evaluated(site, tmp_path):
    source = site / "relay_pack"
    lines = [
        "list --json",
        "list",
        "play relay --policy scripted:1 --json",
        "play reversal --n 2",
        "eval relay_v0 --policy scripted:1 --n 20 --options length=6",
        "eval relay --policy scripted:0 --task relay_pack.task:ReversalTask --n 20",
        f"eval {source}/workflow.py:Relay --task {source}/task.py:ReversalTask "
        "--policy scripted:1 --n 20",
        "train relay",
        "eval relai --policy scripted:1",
        "eval relay --task reversl",
        "eval eval_opt --task reversal",
        "eval voting --task reversal --policy scripted:1 --n 10",
    ]
    results = dict(zip(lines, commands(site, lines, tmp_path), strict=True))
    listed = [json.loads(row) for row in results["list --json"][1].splitlines()]
    relay = next(entry for entry in listed if entry["name"] == "relay_v0")
    assert (relay["package"], relay["default_task"]) == ("relay-pack 1.2", "reversal")
    assert "reversal" in relay["tasks"]
    assert all(entry["package"] is None for entry in listed if entry is not relay)
    assert "package  relay-pack 1.2" in results["list"][1]
    assert results["list"][1].count("relay-pack 1.2") == 4  # workflow, task, engine, package
    packages = " ".join(results["list"][1].partition("Packages with")[2].split())
    assert "relay-pack 1.2 A workflow, a task and an engine that are not" in packages
    assert "offers workflow relay_v0, task reversal, engine echo" in packages
    assert json.loads(results[lines[2]][1])["task"] == "reversal"
    assert "no pocket model plays reversal: playing scripted:0.8" in results[lines[3]][2]
    for line, last in zip(
        lines[4:7], ("100.0 % (20/20)", "0.0 % (0/20)", "100.0 % (20/20)"), strict=True
    ):
        assert results[line][1].splitlines()[-1].startswith(f"accuracy {last},"), results[line]
    for line, message in (
        (lines[7], "no pocket model for the task 'reversal'"),
        (lines[7], "training: --model PATH"),
        (lines[8], "Did you mean 'relay_v0'"),
        (lines[9], "Did you mean 'reversal'"),
        (lines[10], "eval_opt_v0 does not support task 'reversal' of kind 'word'"),
    ):
        status, _, messages = results[line]
        assert (status, messages.count("\n")) == (2, 1)
        assert message in messages
    assert results[lines[11]][1].splitlines()[-1].startswith("accuracy 100.0 % (10/10),"), results[
        lines[11]
    ]


def test_its_engine_plays_and_is_asked_what_it_can(site, tmp_path):
    lines = [
        "eval relay --policy echo:any --n 4",
        "play relay --policy hf:first --engine echo --json",
        "list",
        "eval relay --policy echo:none --n 4",
        "eval relay --policy ecko:any --n 4",
        "eval relay --policy pocket --engine ecko",
        "eval relay --policy echo:any --engine-memory 1",
        "train voting --engine echo --model echo",
    ]
    results = dict(zip(lines, commands(site, lines, tmp_path), strict=True))
    assert results[lines[0]][1].splitlines()[-1].startswith("accuracy "), results[lines[0]]
    assert json.loads(results[lines[1]][1])["workflow"] == "relay_v0"
    assert "echo:PATH" in results["list"][1]
    for line, message in zip(
        lines[3:],
        (
            "expected echo:first or echo:any, got echo:none",
            "unknown policy 'ecko:any'. Valid choices: DIRECTORY, echo:PATH, hf:PATH",
            "unknown engine 'ecko'. Did you mean 'echo'?",
            "--engine-memory is for vLLM",
            "`engine` echo only plays",
        ),
        strict=True,
    ):
        status, _, messages = results[line]
        assert status == 2, (line, messages)
        assert message in messages, (line, messages)
    check = "from flowzoo.agents.testing import check_engine\ncheck_engine('echo', 'any')"
    python(site, ["-c", check], tmp_path)


@pytest.mark.full
def test_it_is_checked_and_in_the_doctors_report(site, tmp_path):
    code = (
        "from flowzoo.envs import make_env, make_workflow\n"
        "from flowzoo.envs.tasks import make_task\n"
        "from flowzoo.envs.testing import check_task, check_workflow\n"
        "from flowzoo.commands.doctor import examine\n"
        "check_task(make_task('reversal', length=3))\n"
        "check_workflow(make_workflow('relay', length=5))\n"
        "assert make_env('relay_v0').metadata['name'] == 'relay_v0'\n"
        "print([(row.name, row.ok, row.detail) for row in examine()])"
    )
    texts = python(site, ["-c", code], tmp_path)
    assert "('relay-pack 1.2', True, 'workflow relay_v0, task reversal, engine echo')" in texts


@pytest.mark.full
def test_it_is_trained_compared_and_reported(site, tmp_path):
    small = "--problems 2 --samples 2 --eval-problems 2 --steps 1 --model pocket:math-xs"
    (tmp_path / "two.toml").write_text(
        'seeds = [0]\n[settings]\nmodel = "pocket:math-xs"\nsteps = 1\nproblems = 2\nsamples = 2\n'
        'eval_problems = 2\n[[cells]]\nworkflow = ["relay"]\nsharing = ["shared", "isolated"]\n'
        "settings = { options = ['length=3'] }\n"
    )
    lines = [
        "matrix two.toml --jobs 1 --out both",  # first, while the process has one thread
        f"train relay {small} --out one",
        "report one",
        f"train relay_pack.workflow:Relay --task relay_pack.task:ReversalTask {small}",
        "report both",
    ]
    results = commands(site, lines, tmp_path, FORKING)
    for line, (status, _, messages) in zip(lines, results, strict=True):
        assert status == 0, (line, messages)
    settings = json.loads((tmp_path / "one" / "run.json").read_text())["settings"]
    assert settings["workflow"] == "relay"
    assert (tmp_path / "one" / "report.html").stat().st_size > 0
    assert (tmp_path / "both" / "report.html").stat().st_size > 0
    named = next(tmp_path.glob("runs/relay_pack.workflow-Relay-*"))
    assert (named / "summary.json").is_file()
    cells = json.loads((tmp_path / "both" / "table.json").read_text())
    assert "reversal" in json.dumps(cells)


def plugin(name: str, target: str, package: str = "pack 1") -> plugins.Plugin:
    return plugins.Plugin(name, target, package)


@pytest.mark.parametrize(
    ("offers", "message"),
    [
        ([plugin("relay_v0", "nowhere:Relay")], "relay_v0 of pack 1.*importing nowhere raised"),
        ([plugin("relay_v0", "pathlib:Path")], "must be a subclass of flowzoo.envs.Workflow"),
        (
            [plugin("relay_v0", "flowzoo.envs.workflows.voting:Voting")],
            "has the name 'voting_v0': entry point and class must have one name",
        ),
        (
            [plugin("relay_v0", "a:B"), plugin("relay_v0", "c:D", "other 2")],
            r"offered by pack 1 \(a:B\) and other 2 \(c:D\): name the one that is meant",
        ),
    ],
)
def test_packages_that_cannot_be_used_are_told_of(monkeypatch, offers, message):
    monkeypatch.setattr(plugins, "plugins", lambda group: offers)
    monkeypatch.setattr(registry, "plugins", lambda group: offers)
    with pytest.raises(UsageError, match=message):
        registry.workflow_class("relay")


# -- `flowzoo completion`: what the shells offer, asked of the shells themselves -------------------


ASK = {
    "bash": """source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _flowzoo; printf '%s\\n' "${COMPREPLY[@]}" """,
    "zsh": """fpath=("${1:h}" $fpath); autoload -Uz _flowzoo; shift; words=("$@"); CURRENT=$#
        _describe() { print -l -- "${(@P)2}" }; _flowzoo""",
    "fish": """source $argv[1]; complete --do-complete (string join ' ' -- $argv[2..])""",
}
"""Programs that get the completions' file and the words so far, and print what may come next."""
BARE = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}


@pytest.mark.parametrize("shell", ASK)
def test_commands_options_and_choices_are_offered(shell, tmp_path, capsys):
    assert cli.main(["completion", shell]) == 0
    path = tmp_path / "_flowzoo"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")

    def offered(*args):
        """Candidates after `args`, without their descriptions."""
        name = [] if shell == "fish" else [shell]
        command = [shell, *BARE[shell], "-c", ASK[shell], *name, str(path), "flowzoo", *args]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return {line.replace("\t", ":").split(":")[0] for line in done.stdout.splitlines() if line}

    assert offered("tr") == {"train"}
    assert {"play", "eval", "train", "report"} <= offered("")
    assert offered("train", "--optimi") == {"--optimizer"}
    assert offered("train", "--optimizer", "") == {
        "adamw", "adafactor", "sgd", "muon", "adamw8bit",
    }  # fmt: skip
