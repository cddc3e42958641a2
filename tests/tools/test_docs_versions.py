"""The pages of several releases lie side by side."""

import subprocess
from pathlib import Path

from tools import docs_versions

TEMPLATES = Path(__file__).resolve().parents[2] / "docs/templates"
CONF = f"""
import os
project, version, html_theme = "zoo", {{version!r}}, "furo"
templates_path = [{str(TEMPLATES)!r}]
html_context = {{{{"versions": "FLOWZOO_DOCS_VERSIONS" in os.environ}}}}
html_sidebars = {{{{"**": ["sidebar/versions.html"]}}}}
"""
PAGE = ".. toctree::\n\n   more/page\n"


def git(folder: Path, *args: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *identity, *args], cwd=folder, check=True, capture_output=True)


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
