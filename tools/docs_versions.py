"""The documentation of every release side by side, for a web server or a folder.

    python -m tools.docs_versions [--out build/site]

Every tag `v*` and the commit at hand (`dev`) is checked out into a folder of its own and built into
`OUT/VERSION`; `OUT/index.html` leads to the newest release and `OUT/versions.html` lists all, to
which every page has a link. A release that is built already is kept.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEV = "dev"
_TAG = re.compile(r"v(\d+)\.(\d+)\.(\d+)")


def releases(root: Path) -> list[str]:
    """Tags of releases, the newest first."""
    tags = subprocess.run(
        ["git", "tag", "--list", "v*"], cwd=root, capture_output=True, text=True, check=True
    ).stdout.split()
    numbers = {
        tag: tuple(map(int, match.groups())) for tag in tags if (match := _TAG.fullmatch(tag))
    }
    return sorted(numbers, key=numbers.__getitem__, reverse=True)


def build(commit: str, target: Path, root: Path) -> None:
    """Build the pages of a commit into `target`; a warning is an error.

    Raises:
        CalledProcessError: git or Sphinx failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        git = ["git", "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", tree, commit], cwd=root, check=True)
        try:
            env = {**os.environ, "PYTHONPATH": str(tree), "FLOWZOO_DOCS_VERSIONS": "1"}
            command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html"]
            trees = ["-d", Path(folder, "doctrees")]
            subprocess.run([*command, *trees, "docs", target], cwd=tree, env=env, check=True)
        finally:
            subprocess.run([*git, "remove", "--force", tree], cwd=root, check=True)


def write_index(out: Path, versions: Sequence[str]) -> None:
    """Write the list of versions, and the page that leads to the first of them."""
    items = "".join(
        f'<li><a href="{name}/index.html">{name}</a>' for name in map(html.escape, versions)
    )
    head = "<!doctype html><html lang=en><meta charset=utf-8><title>flowzoo</title>"
    (out / "versions.html").write_text(f"{head}<h1>Versions</h1><ul>{items}</ul>", "utf-8")
    first = f"{html.escape(versions[0])}/index.html"
    refresh = f'<meta http-equiv=refresh content="0; url={first}">'
    (out / "index.html").write_text(f'{head}{refresh}<a href="{first}">flowzoo</a>', "utf-8")


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Build what is missing; the exit status is 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=root / "build/site", help="folder of the site")
    out = parser.parse_args(arguments).out.resolve()
    tags = releases(root)
    for tag in tags:
        if not (out / tag / "index.html").exists():
            build(tag, out / tag, root)
    build("HEAD", out / DEV, root)
    write_index(out, [*tags, DEV])
    print(f"{out / 'index.html'}: {', '.join([*tags, DEV])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
