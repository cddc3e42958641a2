"""The checks of a release find what they are for."""

import io
import os
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from flowzoo.extras import REPOSITORY
from tools import docs_versions, release
from tools.release import OWNER, ReleaseError

ROOT = Path(__file__).resolve().parents[2]
TARGETS = """[tool.hatch.build.targets]
wheel = { exclude = ["/flowzoo/big"] }
sdist = { include = ["/flowzoo", "/docs", "/c*.txt"], exclude = ["/docs/generated"] }
"""
FILES = {
    "pyproject.toml": TARGETS,
    "flowzoo/__init__.py": "",
    "flowzoo/big/weights": "",
    # Not written out, since `--owner` would replace it here, too.
    "docs/a.md": f"see https://github.com/{OWNER}/flowzoo/issues, https://{OWNER}.github.io/flowzoo",
    "docs/generated/b.md": "",
    "constraints.txt": "",
    "Makefile": "OWNER",
}


def git(folder: Path, *args: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *identity, *args], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A small repository with one commit."""
    folder = tmp_path / "clone"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "docs/picture.png").write_bytes(b"\xff" + FILES["docs/a.md"].encode())
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "all")
    return folder


def archives(folder: Path, wheel: list[str], sdist: list[str]) -> None:
    """Write both archives with these files."""
    license_file = "flowzoo-1.0.dist-info/licenses/LICENSE"
    with zipfile.ZipFile(folder / "flowzoo-1.0-py3-none-any.whl", "w") as archive:
        for name in (*wheel, license_file):
            archive.writestr(name, "")
    with tarfile.open(folder / "flowzoo-1.0.tar.gz", "w:gz") as tar:
        for name in (*sdist, "PKG-INFO"):
            tar.addfile(tarfile.TarInfo(f"flowzoo-1.0/{name}"), io.BytesIO())


SDIST = [
    *("flowzoo/__init__.py", "flowzoo/big/weights", "docs/a.md", "docs/picture.png"),
    "constraints.txt",
]


def test_archives_hold_the_tracked_files_and_no_others(clone, tmp_path):
    archives(tmp_path, ["flowzoo/__init__.py"], SDIST)
    assert release.check_contents(tmp_path, "1.0", clone) == "1 and 6 files"


@pytest.mark.parametrize(
    ("wheel", "sdist", "message"),
    [
        ([], SDIST, "whl lacks 1 files, e.g. flowzoo/__init__.py"),
        (["flowzoo/__init__.py", "flowzoo/big/weights"], SDIST, "whl has besides 1 files"),
        (["flowzoo/__init__.py"], SDIST[:-1], "tar.gz lacks 1 files, e.g. constraints.txt"),
        (["flowzoo/__init__.py"], [*SDIST, "notes.md"], "tar.gz has besides 1 files, e.g. notes"),
    ],
)
def test_a_file_too_few_or_too_many_is_found(wheel, sdist, message, clone, tmp_path):
    archives(tmp_path, wheel, sdist)
    with pytest.raises(ReleaseError, match=message):
        release.check_contents(tmp_path, "1.0", clone)


def test_the_tag_is_that_of_the_version(clone):
    with pytest.raises(ReleaseError, match=r"expected the tag v1\.0 here, got \[\]: git tag v1\.0"):
        release.check_tag("1.0", clone)
    git(clone, "tag", "v1.0")
    assert release.check_tag("1.0", clone) == "v1.0"
    with pytest.raises(ReleaseError, match=r"expected the tag v1\.1"):
        release.check_tag("1.1", clone)


def test_changes_that_are_not_committed_are_found(clone):
    release.check_tree(clone)
    (clone / "new.md").write_text("")
    with pytest.raises(ReleaseError, match=r"1 changes are not committed, e\.g\. \?\? new\.md"):
        release.check_tree(clone)


@pytest.mark.parametrize("heading", ["## 1.0 (unreleased)", "## 0.9 (2026-01-01)", "text"])
def test_the_changelog_has_the_version_with_its_date(heading):
    with pytest.raises(ReleaseError, match=r"expected ## 1\.0 \(YYYY-MM-DD\)"):
        release.check_changelog("1.0", f"# Changelog\n{heading}\n")
    text = f"# Changelog\n## 1.0 (2026-02-03)\n{heading}\n"
    assert release.check_changelog("1.0", text) == "1.0 (2026-02-03)"


def test_the_owner_is_one_and_replaced_by_one_command(clone, monkeypatch):
    def address(owner: str) -> str:
        return f"https://github.com/{owner}/flowzoo"

    monkeypatch.setattr(release, "PUBLISHED", True)
    with pytest.raises(ReleaseError, match=r"placeholder in docs/a.md: python -m tools.release"):
        release.check_addresses(clone, address(OWNER))
    with pytest.raises(ReleaseError, match="got 'a/b'"):
        release.write_owner("a/b", clone)
    for owner in ("first", "zoo"):  # and once more, as when a repository moves
        assert release.write_owner(owner, clone) == ["docs/a.md"]
    assert release.write_owner("zoo", clone) == []
    text = (clone / "docs/a.md").read_text()
    assert text == FILES["docs/a.md"].replace(OWNER, "zoo")
    assert release.check_addresses(clone, address("zoo")) == "all of zoo"
    with pytest.raises(ReleaseError, match=r"of other and of others, \{'zoo': \['docs/a.md'\]\}"):
        release.check_addresses(clone, address("other"))
    monkeypatch.setattr(release, "PUBLISHED", False)
    with pytest.raises(ReleaseError, match=r"PUBLISHED in flowzoo/extras\.py is False"):
        release.check_addresses(clone, address("zoo"))


def metadata() -> str:
    """A METADATA file as this project's should be."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = "".join(f"Provides-Extra: {name}\n" for name in project["optional-dependencies"])
    urls = "".join(f"Project-URL: {label}, {url}\n" for label, url in project["urls"].items())
    return (
        f"Version: 1.0\nRequires-Python: >=3.11\nLicense-Expression: Apache-2.0\n{extras}{urls}\n"
        "See [docs](https://a.b/c) and [below](#below).\n"
    )


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("Version: 1.0", "Version: 1.1", r"Version: expected \['1.0'\], got \['1.1'\]"),
        ("Requires-Python: >=3.11\n", "", "Requires-Python: expected"),
        ("Provides-Extra: train\n", "", "Provides-Extra: expected"),
        ("Project-URL: Changelog", "Project-URL: News", "Project-URL lacks Changelog"),
        ("https://a.b/c", "docs/c.md", r"leads nowhere on an index: \]\(docs/c.md\)"),
    ],
)
def test_metadata_that_lacks_something_is_found(before, after, message):
    text = metadata()
    assert before in text
    assert release.check_fields(text, "1.0")
    with pytest.raises(ReleaseError, match=message):
        release.check_fields(text.replace(before, after), "1.0")


def test_all_addresses_are_of_one_owner():
    ((owner, files),) = release.owners().items()
    assert owner == REPOSITORY.split("/")[3]
    notebooks = {f"docs/notebooks/{name}.ipynb" for name in ("episodes", "run")}
    assert {"CITATION.cff", "flowzoo/extras.py", "pyproject.toml", *notebooks} <= {*files}


def test_a_python_that_is_missing_is_reported(tmp_path, monkeypatch):
    script = tmp_path / "tests/smoke.sh"
    script.parent.mkdir()
    script.write_text(
        '#!/bin/sh\n[ "$1" = here ] && echo "$1: a.whl works" || echo "$1: nothing was tried"\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    report = release.check_pythons(tmp_path, ["here", "gone", "lost"])
    assert report == "here: a.whl works; NOT TRIED, since not on this machine: gone, lost"
    assert release.check_pythons(tmp_path, ["here"]) == "here: a.whl works"
    with pytest.raises(ReleaseError, match=r"none of gone, lost is here"):
        release.check_pythons(tmp_path, ["gone", "lost"])


@pytest.mark.full
def test_what_is_built_passes(tmp_path):
    for module in ("build", "twine"):
        pytest.importorskip(module, reason="releases need flowzoo[dev]")
    version = release.flowzoo.__version__
    assert "flowzoo" in release.build(tmp_path, version)
    assert release.check_contents(tmp_path, version)
    assert release.check_metadata(tmp_path, version)


# -- The pages of several releases lie side by side ------------------------------------------------


TEMPLATES = Path(__file__).resolve().parents[2] / "docs/templates"
CONF = f"""
import os
project, version, html_theme = "zoo", {{version!r}}, "furo"
templates_path = [{str(TEMPLATES)!r}]
html_context = {{{{"versions": "FLOWZOO_DOCS_VERSIONS" in os.environ}}}}
html_sidebars = {{{{"**": ["sidebar/versions.html"]}}}}
"""
PAGE = ".. toctree::\n\n   more/page\n"


def test_every_release_is_built_from_its_tag(tmp_path, capsys):
    clone, site = tmp_path / "clone", tmp_path / "site"
    (clone / "docs/more").mkdir(parents=True)
    git(clone, "init", "-q")
    for version in ("0.9.0", "0.10.0", "0.11.0"):
        (clone / "docs/conf.py").write_text(CONF.format(version=version))
        (clone / "docs/index.rst").write_text(f"Zoo {version}\n==========\n\n{PAGE}")
        (clone / "docs/more/page.rst").write_text("Page\n====\n")
        git(clone, "add", "-A")
        git(clone, "commit", "-qm", version)
        if version != "0.11.0":
            git(clone, "tag", f"v{version}")
    (site / "v0.9.0").mkdir(parents=True)
    (site / "v0.9.0/index.html").write_text("built before")

    assert docs_versions.main(["--out", str(site)], clone) == 0
    assert capsys.readouterr().out.endswith("v0.10.0, v0.9.0, dev\n")
    assert (site / "v0.9.0/index.html").read_text() == "built before"
    assert "url=v0.10.0/index.html" in (site / "index.html").read_text()
    versions = (site / "versions.html").read_text()
    assert versions.index("v0.10.0/") < versions.index("v0.9.0/") < versions.index("dev/")
    for folder, version in (("v0.10.0", "0.10.0"), ("dev", "0.11.0")):
        assert f"Zoo {version}" in (site / folder / "index.html").read_text()
        link = f'versions.html">Version {version}, all versions'
        assert f'href="./../{link}' in (site / folder / "index.html").read_text()
        assert f'href="../../{link}' in (site / folder / "more/page.html").read_text()
    worktrees = subprocess.run(["git", "worktree", "list"], cwd=clone, capture_output=True)
    assert worktrees.stdout.count(b"\n") == 1


def test_an_inactive_python_of_pyenv_is_tried(tmp_path):
    def interpreter(path: Path, answer: int) -> None:
        path.parent.mkdir(parents=True)
        path.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit {answer}\necho "chosen: $*"; exit 7\n')
        path.chmod(0o755)

    interpreter(tmp_path / "shims/python3.99", 127)
    interpreter(tmp_path / "versions/3.98.1/bin/python3.98", 0)
    (tmp_path / "flowzoo-1.0.whl").touch()
    search = f"{tmp_path / 'shims'}:{os.environ['PATH']}"
    variables = {**os.environ, "PATH": search, "PYENV_ROOT": str(tmp_path)}

    def smoke(python: str) -> subprocess.CompletedProcess[str]:
        command = [str(ROOT / "tests/smoke.sh"), python, str(tmp_path)]
        return subprocess.run(command, env=variables, capture_output=True, text=True)

    assert "nothing was tried" in smoke("python3.99").stdout
    interpreter(tmp_path / "versions/3.99.0/bin/python3.99", 0)
    for python in ("python3.98", "python3.99"):
        done = smoke(python)
        assert (done.returncode, done.stdout) == (7, "chosen: -m venv --clear venv\n")
