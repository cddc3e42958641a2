"""The checklist of a release: every check runs, and a line says how it ended.

    python -m tools.release                 build into dist/ and check what is there
    python -m tools.release --owner NAME    write the owner of the repository into all files; the
                                            present one is that of REPOSITORY in flowzoo/extras.py

Exit status 1 if a check failed. A Python that is missing on this machine is reported and is no
failure. Nothing is uploaded. It needs `build`, `twine` and `cyclonedx-bom` of the extra `dev`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from email.parser import HeaderParser
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import flowzoo
from flowzoo.extras import PUBLISHED, REPOSITORY

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("python3.11", "python3.12", "python3.13")
OWNER = "OWNER"
"""Placeholder for the owner in addresses of the repository."""
ADDRESS = re.compile(
    r"(?P<start>(?:github\.com|\.com/github)/)(?P<owner>[\w-]+)(?=/flowzoo\b)"
    r"|(?P<host>://)(?P<site>[\w-]+)(?=\.github\.io/flowzoo\b)"
)
LABELS = ("Repository", "Issues", "Documentation", "Changelog")


class ReleaseError(Exception):
    """A check that failed, with its remedy."""


def output(command: Sequence[str | Path], cwd: Path = ROOT) -> str:
    """Standard output of a command.

    Raises:
        ReleaseError: it failed; with the end of what it wrote.
    """
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()[-8:]
        raise ReleaseError(f"{' '.join(map(str, command[:4]))} failed: " + "\n    ".join(lines))
    return done.stdout


def tracked_files(root: Path = ROOT) -> list[str]:
    """Paths of the files under version control."""
    return output(["git", "ls-files", "-z"], root).split("\0")[:-1]


def check_tree(root: Path = ROOT) -> str:
    """No changes that are not committed."""
    changes = output(["git", "status", "--porcelain"], root).splitlines()
    if changes:
        raise ReleaseError(f"{len(changes)} changes are not committed, e.g. {changes[0]}")
    return output(["git", "rev-parse", "--short", "HEAD"], root).strip()


def check_tag(version: str, root: Path = ROOT) -> str:
    """The commit has the tag of the version."""
    tags = output(["git", "tag", "--points-at", "HEAD"], root).split()
    if f"v{version}" not in tags:
        raise ReleaseError(f"expected the tag v{version} here, got {tags}: git tag v{version}")
    return f"v{version}"


def check_changelog(version: str, text: str) -> str:
    """The version has a heading with its date, above the others."""
    first = re.search(r"^## (\S+) \((.*)\)$", text, re.MULTILINE)
    heading = f"## {version} (YYYY-MM-DD)"
    if first is None or first[1] != version or not re.fullmatch(r"\d{4}-\d\d-\d\d", first[2]):
        title = first[0] if first else "no heading"
        raise ReleaseError(f"CHANGELOG.md: expected {heading} at the top, got {title}")
    return first[0].removeprefix("## ")


def owners(root: Path = ROOT) -> dict[str, list[str]]:
    """Owner in addresses of the repository -> files with it; one owner, unless some were missed."""
    files: dict[str, list[str]] = {}
    for name in tracked_files(root):
        matches = ADDRESS.finditer(_text(root / name))
        for owner in {match["owner"] or match["site"] for match in matches}:
            files.setdefault(owner, []).append(name)
    return files


def check_addresses(root: Path = ROOT, repository: str = REPOSITORY) -> str:
    """All addresses are of the owner of `repository`, and remedies name the package index."""
    remedy, owner = "python -m tools.release --owner NAME", repository.split("/")[3]
    others = {name: files for name, files in owners(root).items() if name != owner}
    if others:
        raise ReleaseError(f"addresses of {owner} and of others, {others}: {remedy}")
    if owner == OWNER:
        raise ReleaseError(
            f"{OWNER} is a placeholder in {', '.join(owners(root)[OWNER])}: {remedy}"
        )
    if not PUBLISHED:
        raise ReleaseError("PUBLISHED in flowzoo/extras.py is False: remedies name a clone")
    return f"all of {owner}"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else ""
    except UnicodeDecodeError:  # weights and pictures
        return ""


def write_owner(owner: str, root: Path = ROOT) -> list[str]:
    """Replace the owner in all tracked files; the names of those that changed."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]*", owner):
        raise ReleaseError(f"--owner: expected letters, digits and hyphens, got {owner!r}")
    changed = []
    for name in tracked_files(root):
        text = _text(root / name)
        new = ADDRESS.sub(lambda match: f"{match['start'] or match['host']}{owner}", text)
        if new != text:
            (root / name).write_text(new, encoding="utf-8")
            changed.append(name)
    return changed


def build(out: Path, version: str) -> str:
    """Build the wheel and the sdist into `out`."""
    for path in out.glob(f"flowzoo-{version}*"):
        path.unlink()
    os.environ.setdefault("PIP_CONSTRAINT", str(ROOT / "constraints.txt"))
    output([sys.executable, "-m", "build", "--outdir", out.resolve(), ROOT])
    return ", ".join(
        f"{path.name} ({path.stat().st_size} bytes)" for path in archives(out, version)
    )


def archives(out: Path, version: str) -> tuple[Path, Path]:
    """Paths of the wheel and the sdist.

    Raises:
        ReleaseError: one of them is missing.
    """
    paths = out / f"flowzoo-{version}-py3-none-any.whl", out / f"flowzoo-{version}.tar.gz"
    for path in paths:
        if not path.is_file():
            raise ReleaseError(f"{path} is missing: the build did not finish")
    return paths


def check_contents(out: Path, version: str, root: Path = ROOT) -> str:
    """Both archives hold the tracked files that pyproject.toml names, and no others."""
    targets = tomllib.loads(_text(root / "pyproject.toml"))["tool"]["hatch"]["build"]["targets"]
    files = tracked_files(root)
    wheel, sdist = archives(out, version)
    with zipfile.ZipFile(wheel) as archive:
        info = f"flowzoo-{version}.dist-info"
        entries = {name for name in archive.namelist() if not name.startswith(f"{info}/")}
        if f"{info}/licenses/LICENSE" not in archive.namelist():
            raise ReleaseError(f"{wheel.name} has no license")
    package = _selected(files, ["/flowzoo"], targets["wheel"]["exclude"])
    _compare(wheel.name, entries, package)
    with tarfile.open(sdist) as tar:
        members = {entry.name.partition("/")[2] for entry in tar if not entry.isdir()}
    usual = {"PKG-INFO", "LICENSE", "README.md", "pyproject.toml", ".gitignore"}
    source = _selected(files, targets["sdist"]["include"], targets["sdist"]["exclude"])
    _compare(sdist.name, members - usual, source - usual)
    return f"{len(entries)} and {len(members)} files"


def _selected(files: Sequence[str], include: Sequence[str], exclude: Sequence[str]) -> set[str]:
    def under(name: str, patterns: Sequence[str]) -> bool:
        paths = [pattern.removeprefix("/") for pattern in patterns]
        return any(fnmatch(name, path) or name.startswith(f"{path}/") for path in paths)

    return {name for name in files if under(name, include) and not under(name, exclude)}


def _compare(archive: str, entries: set[str], expected: set[str]) -> None:
    for word, names in (("lacks", expected - entries), ("has besides", entries - expected)):
        if names:
            raise ReleaseError(f"{archive} {word} {len(names)} files, e.g. {min(names)}")


def check_metadata(out: Path, version: str) -> str:
    """The metadata can be rendered, and name version, Python, license, extras and addresses."""
    paths = archives(out, version)
    output([sys.executable, "-m", "twine", "check", "--strict", *paths])
    with zipfile.ZipFile(paths[0]) as archive:
        return check_fields(archive.read(f"flowzoo-{version}.dist-info/METADATA").decode(), version)


def check_fields(text: str, version: str) -> str:
    """Fields of a METADATA file are those of pyproject.toml; its description has whole links."""
    fields = HeaderParser().parsestr(text)
    project = tomllib.loads(_text(ROOT / "pyproject.toml"))["project"]
    expected = {
        "Version": [version],
        "Requires-Python": [project["requires-python"]],
        "License-Expression": [project["license"]],
        "Provides-Extra": sorted(project["optional-dependencies"]),
    }
    for name, values in expected.items():
        if sorted(fields.get_all(name) or []) != values:
            raise ReleaseError(f"{name}: expected {values}, got {fields.get_all(name)}")
    labels = [url.partition(",")[0] for url in fields.get_all("Project-URL") or []]
    if missing := set(LABELS) - set(labels):
        raise ReleaseError(f"Project-URL lacks {', '.join(sorted(missing))}")
    if link := re.search(r"\]\((?!\w+:|#)[^)]+\)", str(fields.get_payload())):
        raise ReleaseError(f"the description has a link that leads nowhere on an index: {link[0]}")
    return f"{len(fields.keys())} fields"


def check_pythons(out: Path, pythons: Sequence[str]) -> str:
    """Wheel and sdist are installed and played with every Python of this machine."""
    tried, missing = [], []
    for python in pythons:
        text = output([ROOT / "tests/smoke.sh", python, out.resolve()])
        works = [line for line in text.splitlines() if line.endswith(" works")]
        tried += works
        missing += [] if works else [python]
    if not tried:
        raise ReleaseError(f"none of {', '.join(pythons)} is here: name one with --python")
    note = f"NOT TRIED, since not on this machine: {', '.join(missing)}"
    return "; ".join([*tried, note] if missing else tried)


def write_bill(out: Path, version: str) -> str:
    """Write the bill of materials (CycloneDX) of the wheel, installed without extras."""
    wheel, _ = archives(out, version)
    target = out / f"flowzoo-{version}.cdx.json"
    with tempfile.TemporaryDirectory() as folder:
        output([sys.executable, "-m", "venv", "--without-pip", folder])
        pip = [sys.executable, "-m", "pip", "--python", Path(folder, "bin/python"), "install", "-q"]
        output([*pip, "-c", ROOT / "constraints.txt", wheel])
        tool = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
        project = ["--pyproject", ROOT / "pyproject.toml", "--mc-type", "library"]
        output([*tool, *project, "-o", target, Path(folder, "bin/python")])
    names = {component["name"] for component in json.loads(_text(target))["components"]}
    expected = {"numpy", "gymnasium", "pettingzoo", "sympy", "numba", "rich"}
    if missing := expected - names:
        raise ReleaseError(f"{target} lacks {', '.join(sorted(missing))}")
    return f"{target.name}, {len(names)} components"


def checks(out: Path, version: str, pythons: Sequence[str]) -> dict[str, Callable[[], str]]:
    """All checks by name, in order."""
    return {
        "clean tree": check_tree,
        "tag": partial(check_tag, version),
        "changelog": partial(check_changelog, version, _text(ROOT / "CHANGELOG.md")),
        "addresses": check_addresses,
        "build": partial(build, out, version),
        "contents": partial(check_contents, out, version),
        "metadata": partial(check_metadata, out, version),
        "bill of materials": partial(write_bill, out, version),
        "pythons": partial(check_pythons, out, pythons),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checklist; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the archives")
    parser.add_argument("--python", nargs="+", default=PYTHONS, help="interpreters to try")
    parser.add_argument("--owner", help="owner of the repository, in place of the present one")
    options = parser.parse_args(arguments)
    if options.owner is not None:
        try:
            print("\n".join(write_owner(options.owner)))
        except ReleaseError as error:
            parser.error(str(error))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    failed = []
    listed = checks(options.out, flowzoo.__version__, options.python)
    for name, check in listed.items():
        try:
            print(f"ok      {name}: {check()}", flush=True)
        except ReleaseError as error:
            failed.append(name)
            print(f"FAILED  {name}: {error}", flush=True)
    passed = f"{len(listed) - len(failed)} of {len(listed)} checks passed"
    print(f"{passed}; to be done: {', '.join(failed)}" if failed else passed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
