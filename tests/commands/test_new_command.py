import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from flowzoo.cli import main
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
