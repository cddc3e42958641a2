"""Blocks of the tutorials run, outputs and links are what they say they are."""

import ast
import re
import shlex
import sys
from pathlib import Path

import pytest
from blocks import BLOCK, blocks_of, commands_of, smaller

from flowzoo.baselines.settings.algorithms import ALGORITHMS
from flowzoo.cli import main
from flowzoo.commands.line import parse
from flowzoo.envs import WORKFLOWS
from flowzoo.envs.tasks import TASKS

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "AGENTS.md")
    ),
    *(path for path in sorted(DOCS.rglob("*.md")) if "generated" not in path.parts),
]
NAMES = ["start", *(f"tutorials/{path.stem}" for path in sorted((DOCS / "tutorials").glob("*.md")))]
"""The pages that are played."""
WIDTH = "81"
"""Columns of the terminal whose output the pages show."""
SLOW = re.compile(r"flowzoo (train|report|export|eval .*hf:)")
"""Commands that train, or that need what was trained."""


def play(page: Path, folder: Path, capsys: pytest.CaptureFixture[str], slow: bool) -> int:
    """Run the page's blocks in `folder`, in order; how many commands and programs were run."""
    names: dict[str, object] = {"__name__": "page"}
    printed, ran = "", 0
    blocks = blocks_of(page)
    followers = [*(block.language for block in blocks[1:]), ""]
    for block, following in zip(blocks, followers, strict=True):
        language, text = block
        if block.file:
            (folder / block.file).write_text(text, encoding="utf-8")
        elif language == "python":
            exec(compile(text, f"{page.name}", "exec"), names)
            ran += 1
        elif language == "shell":
            for line in text.splitlines():
                if slow or not SLOW.match(line):
                    args = shlex.split(line)[1:]
                    parse(tuple(args))
                    capsys.readouterr()
                    assert main(args if following == "output" else smaller(args)) == 0, line
                    printed, ran = capsys.readouterr().out, ran + 1
        elif language == "output":
            displayed = [line.rstrip() for line in text.splitlines()]
            assert [line.rstrip() for line in printed.splitlines()] == displayed
        else:
            assert language in ("", "text", "toml"), f"{page}: {language} blocks are not run"
    return ran


@pytest.mark.parametrize(
    ("name", "slow"),
    [("start", False), *(pytest.param(name, True, marks=pytest.mark.full) for name in NAMES)],
)
def test_a_tutorial_runs_as_written(name, slow, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLUMNS", WIDTH)
    before = set(sys.modules)
    assert play(DOCS / f"{name}.md", tmp_path, capsys, slow)
    for module in set(sys.modules) - before:
        if (tmp_path / f"{module}.py").exists():
            del sys.modules[module]


@pytest.mark.parametrize("name", ["migrate", "qwen3"])
def test_commands_that_are_not_played_parse(name):
    blocks = blocks_of(DOCS / "tutorials" / f"{name}.md")
    lines = [args for block in blocks if block.language != "text" for args in commands_of(block)]
    for args in lines:
        parse(tuple(args))
    assert len(lines) >= 5


def test_the_gallery_shows_every_task(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    from pages.gallery import CHOICES, gallery

    page = gallery()
    assert set(CHOICES) == set(TASKS)
    assert page.count("\nanswer: ") == 2 * sum(map(len, CHOICES.values()))
    assert "Compute 6*2-12.\n\nanswer: 0\n" in page


def templates() -> set[str]:
    """Texts in the code of the package, with … where a value is filled in."""
    texts = set()
    for path in (ROOT / "flowzoo").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [getattr(part, "value", "") for part in node.values]
                texts.add("".join(part if isinstance(part, str) else "…" for part in parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
    return texts


def test_error_messages_are_as_the_code_has_them():
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    messages = [
        first or second for first, second in re.findall(r"^\| (?:``(.+?)``|`(.+?)`) \|", page, re.M)
    ]
    assert len(messages) == 21
    texts = templates()
    for message in messages:
        assert any(message in text for text in texts), message


SIZES = (
    "return [...document.querySelectorAll('.formula')].map(e => [e.scrollHeight, e.clientHeight])"
)


@pytest.mark.full
@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize("width", [1300, 390])
def test_formulas_are_as_high_as_their_letters(width, browser, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    from pages.formulas import advantage, loss
    from pages.mathml import display

    texts = [advantage(built.advantage)[0] for built in ALGORITHMS.values()]
    texts += [text for built in ALGORITHMS.values() for text in loss(built)]
    style = (DOCS / "static/style.css").read_text(encoding="utf-8")
    body = "\n".join(display(text) for text in texts)
    page = tmp_path / "page.html"
    page.write_text(
        f"<!doctype html><meta charset=utf-8><style>{style}</style><article>{body}</article>",
        encoding="utf-8",
    )
    view = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", view)
    browser.get(page.as_uri())
    sizes = browser.execute_script(SIZES)
    assert len(sizes) == len(texts) > 60
    for text, (needed, high) in zip(texts, sizes, strict=True):
        assert needed <= high, text


def slug(heading: str) -> str:
    """The anchor that code hosts and the site give a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def prose(path: Path) -> str:
    """A page without its blocks of code."""
    return BLOCK.sub("", path.read_text(encoding="utf-8"))


def test_links_lead_somewhere_on_a_code_host_too():
    looked = 0
    for path in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
            if re.match(r"\w+:", target):
                continue
            name, _, anchor = target.partition("#")
            results = (path.parent / name).resolve() if name else path
            assert results.is_file(), f"{path.name}: {target}"
            assert "generated" not in results.parts, (
                f"{path.name}: {target} is not in the repository"
            )
            if anchor:
                headings = re.findall(r"^#+ (.*)$", prose(results), re.MULTILINE)
                assert anchor in map(slug, headings), f"{path.name}: {target}"
            looked += 1
    assert looked > 100


def test_every_page_is_in_the_contents(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    from pages.environments import GAMES
    from pages.libraries import LIBRARIES

    entries = {
        (path.parent / line.strip()).with_suffix("").resolve().relative_to(DOCS).as_posix()
        for path in DOCS.rglob("*.md")
        for tree in re.findall(r"^```{toctree}\n(.*?)^```$", path.read_text("utf-8"), re.M | re.S)
        for line in tree.splitlines()
        if line.strip() and not line.startswith(":")
    }
    pages = {
        path.relative_to(DOCS).with_suffix("").as_posix() for path in PAGES if DOCS in path.parents
    }
    built = {f"generated/environments/{name}" for name in (*WORKFLOWS, *GAMES)}
    built |= {f"generated/algorithms/{name}" for name in ALGORITHMS}
    built |= {
        f"generated/tables/{name}"
        for name in ("expectations", "gallery", "laptop", "leaderboard", "papers", "settings")
    }
    built |= {f"generated/libraries/{name}" for name in (*LIBRARIES, "grpo")}
    built |= {f"generated/notebooks/{path.stem}" for path in (DOCS / "notebooks").glob("*.ipynb")}
    assert entries == (pages - {"index"}) | built


def test_every_bound_of_the_threat_model_names_a_test_that_there_is():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    tables = [row for row in rows if not row.endswith("| test |")]
    assert len(tables) > 30
    for row in tables:
        named = re.findall(r"`(tests/[^`]+)`", row.rstrip("| ").rpartition("|")[2])
        assert named, row
        for path in named:
            folder = ROOT / path
            assert folder.is_file() or any(folder.rglob("test_*.py")), path
