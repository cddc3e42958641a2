"""The README's Python runs as it stands, and its files and commands exist."""

import pkgutil
import re
import runpy
from pathlib import Path
from urllib.parse import urlsplit

import flowzoo.commands
from flowzoo.envs import make_workflow
from flowzoo.envs.testing import check_workflow

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
PYTHON = [block for language, block in BLOCKS if language == "python"]


def test_the_loop_runs(tmp_path):
    script = tmp_path / "loop.py"
    script.write_text(PYTHON[0], encoding="utf-8")
    env = runpy.run_path(str(script))["env"]
    assert env.possible_agents == ["generator_0", "generator_1", "generator_2", "aggregator_0"]


def test_a_workflow_of_ones_own_conforms(tmp_path, monkeypatch):
    (tmp_path / "second_look.py").write_text(PYTHON[1], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    from second_look import SecondLook

    check_workflow(make_workflow(SecondLook))


def test_it_is_short_and_what_it_names_is_there():
    assert len(TEXT.splitlines()) <= 130
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        assert urlsplit(target).scheme or (ROOT / target.split("#")[0]).exists(), target
    named = {word for _, block in BLOCKS for word in re.findall(r"^flowzoo (\w+)", block, re.M)}
    assert named
    assert named <= {module.name for module in pkgutil.iter_modules(flowzoo.commands.__path__)}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:^|`)make ([a-z-]+)(?:$|`)", TEXT, re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target
