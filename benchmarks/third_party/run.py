"""Our environments in other libraries: each library in an environment of its own, one table.

python benchmarks/third_party/run.py [LIBRARY ...] [--write]      (or `make third-party`)
python benchmarks/third_party/run.py --newest [STACK ...] [--write]      (or `make newest`)

`LIBRARY==VERSION` takes that version in place of the one below. An environment lies in
`.venv-third-party/LIBRARY` (or `LIBRARY==VERSION`), above the packages of the one that runs this: a
library brings what it needs in another version, torch is not installed again. `--write` puts the
rows of these libraries into docs/data/libraries.json, and figures of agent programs into
docs/data/agent-libraries.json, unless a row is not as its script says; then it ends with status 1.

`--newest` takes the newest release that the package index has of each of `STACKS`, and prints one
table of what breaks with it; `--write` puts it into docs/data/newest-stacks.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ROWS = ROOT / "docs" / "data" / "libraries.json"
NEWEST_ROWS = ROOT / "docs" / "data" / "newest-stacks.json"
FIGURES = ROOT / "docs" / "data" / "agent-libraries.json"
LIBRARIES = {
    "gymnasium": ["moviepy==2.2.1"],
    "supersuit": ["SuperSuit==3.11.0"],
    "agilerl": ["agilerl==2.7.1"],
    "shimmy": ["shimmy==2.0.1", "open-spiel==2.0.2"],
    "loop": ["gymnasium==1.4.0"],
    "sb3": ["stable-baselines3==2.9.2", "sb3-contrib==2.9.2"],
    "torchrl": ["torchrl==0.14.1"],
    "rllib": ["ray[rllib]==2.60.0"],
    "tianshou": ["tianshou==2.0.1"],
    "inspect": ["inspect-ai==0.3.285"],
    "lm_eval": ["lm-eval[api]==0.4.13"],
    "verifiers": ["verifiers==0.4.0"],
    "openenv": ["openenv==0.10.0"],
    "langgraph": ["langgraph==1.2.24", "langchain-openai==1.7.4", "torchrl==0.14.1"],
    "openai_agents": ["openai-agents==0.24.0"],
    "pydantic_ai": ["pydantic-ai-slim[openai]==2.68.0"],
    "trl": ["trl==1.16.0", "datasets==5.2.0", "pyarrow==26.0.1"],
}
"""What is installed for the script of each, the library first."""
STACKS = {
    **{
        name: LIBRARIES[name]
        for name in ("trl", "verifiers", "openenv", "inspect", "gymnasium", "torchrl")
    },
    "pettingzoo": ["pettingzoo==1.27.0"],
    "transformers": ["transformers==5.17.0"],
}
"""What `--newest` tries; of the last two our own tests are run."""
NEWEST = "newest"
RISES = "rises from "
"""How the result of a script that learns begins."""


def packages_of(word: str) -> list[str]:
    """What `LIBRARY`, `LIBRARY==VERSION` or `LIBRARY==newest` installs."""
    name, _, version = word.partition("==")
    first, *rest = {**LIBRARIES, **STACKS}[name]
    if version == NEWEST:
        return [package.partition("==")[0] for package in (first, *rest)]
    return [f"{first.partition('==')[0]}=={version}" if version else first, *rest]


def prepare(word: str) -> Path:
    """The environment of a library, made if it is not there; its interpreter."""
    folder, packages = ROOT / ".venv-third-party" / word, packages_of(word)
    python, wanted = folder / "bin" / "python", "\n".join(packages)
    stamp = folder / ".installed"
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    venv.create(folder, clear=True)
    place = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    (Path(place) / "below.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # With the pip that is here: to install one in each takes longer than most of the libraries.
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    command = [*pip, "install", "-q", *(["-U"] if word.endswith(NEWEST) else []), *packages]
    subprocess.run(command, check=True, stdout=sys.stderr)
    stamp.write_text(wanted)
    return python


def check(word: str) -> dict[str, Any]:
    """Run the script of a library; what it reports, and its seconds."""
    name, python, start = word.partition("==")[0], prepare(word), time.perf_counter()
    # Ray writes a token into the home folder, even for a cluster within one process.
    usual = {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    variables = {**usual, **os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [python, "-W", "ignore", HERE / f"check_{name}.py"],
        capture_output=True,
        text=True,
        env=variables,
        cwd=ROOT,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"library"')]
    if not lines and not word.endswith(NEWEST):
        sys.exit(f"{name}: the script ended with status {done.returncode}\n{done.stderr[-4000:]}")
    found = json.loads(lines[-1]) if lines else unreported(name, done.stderr)
    print(f"{found['library']}: {time.perf_counter() - start:.0f} s, {found['versions']}")
    for what, result in found["rows"]:
        print(f"  {what}: {result}")
    for what, figure in found["figures"].items():
        print(f"  {what}: {figure}")
    for what, fault in found["faults"].items():
        print(f"  NOT AS SAID: {what}: {fault}")
    return found


def unreported(name: str, errors: str) -> dict[str, Any]:
    """What is known of a library whose script ended before its rows, e.g. at an import."""
    last = (errors.strip().splitlines() or ["ended without a word"])[-1]
    return {"library": name, "versions": {}, "rows": [], "faults": {"script": last}, "figures": {}}


def newest_row(word: str, found: dict[str, Any]) -> list[str]:
    """A stack in the table of newest releases: tested, newest, rows that hold, what breaks."""
    tested = ", ".join(
        package.replace("==", " ") for package in packages_of(word.partition("==")[0])
    )
    newest = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    broken = [f"{what}: {fault.splitlines()[0]}" for what, fault in found["faults"].items()]
    held = f"{len(found['rows']) - len(broken)} of {len(found['rows'])}"
    return [f"**{found['library']}**", tested, newest, held, "<br>".join(broken) or "nothing"]


def write_newest(rows: list[list[str]]) -> None:
    """Put rows of newest releases into their file, each in the place of the stack's earlier one."""
    data = json.loads(NEWEST_ROWS.read_text(encoding="utf-8"))
    data["rows"] = [*{row[0]: row for row in [*data["rows"], *rows]}.values()]
    NEWEST_ROWS.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def title_of(library: dict[str, Any]) -> str:
    """A library with its versions."""
    versions = ", ".join(f"{name} {version}" for name, version in library["versions"].items())
    return f"**{library['library']}** ({versions})"


def write_rows(libraries: list[dict[str, Any]]) -> None:
    """Put the rows of these libraries into their file, and how many there are of each kind."""
    data = json.loads(ROWS.read_text(encoding="utf-8"))
    named = {library["library"]: library for library in data["libraries"]}
    for library in libraries:
        named[library["library"]] = {key: library[key] for key in ("library", "versions", "rows")}
    data["libraries"] = list(named.values())
    data["rows"] = []
    for library in data["libraries"]:
        cannot = sum(result.startswith("cannot") for _, result in library["rows"])
        works = len(library["rows"]) - cannot
        rises = [
            f"{what}: {cell.removeprefix(RISES)}"
            for what, cell in library["rows"]
            if cell.startswith(RISES)
        ]
        data["rows"].append([title_of(library), str(works), str(cannot), "<br>".join(rises)])
    ROWS.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_figures(libraries: list[dict[str, Any]]) -> None:
    """Put the figures of these libraries into their file."""
    data = json.loads(FIGURES.read_text(encoding="utf-8"))
    rows = {row[0].partition(" (")[0]: row for row in data["rows"]}
    for library in libraries:
        if library["figures"]:
            values = [library["figures"][name] for name in data["columns"][1:]]
            rows[f"**{library['library']}**"] = [title_of(library), *values]
    data["rows"] = list(rows.values())
    FIGURES.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    """Check the libraries that are named, or all."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("libraries", nargs="*", metavar="LIBRARY", help=", ".join(LIBRARIES))
    reader.add_argument("--newest", action="store_true", help="take the newest releases")
    reader.add_argument("--write", action="store_true", help="write rows and figures")
    given = reader.parse_args()
    known = STACKS if given.newest else LIBRARIES
    names = given.libraries or list(known)
    if unknown := {name.partition("==")[0] for name in names} - set(known):
        reader.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if given.newest:
        rows = []
        for name in names:
            rows.append(newest_row(name, check(f"{name}=={NEWEST}")))
            print(f"| {' | '.join(rows[-1])} |", flush=True)
            if given.write:
                write_newest(rows)
        return
    found = [check(name) for name in names]
    if given.write and not any(library["faults"] for library in found):
        write_rows(found)
        write_figures(found)
    sys.exit(any(library["faults"] for library in found))


if __name__ == "__main__":
    main()
