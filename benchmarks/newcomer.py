"""How long a newcomer sits over the site's first page, the start page and each tutorial.

    python benchmarks/newcomer.py [--install] [--out FILE.json] [PAGE ...]

Reading is counted, at 200 words of prose a minute; typing too, at 200 characters a minute of what
pages tell to type (commands and files; nobody has to, all blocks can be copied). What the commands
and programs take is measured: every block is run as it is written, in order, in an empty folder, by
the interpreter that runs this. `--install` also runs the installation of the start page, in a fresh
environment of this clone.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
FIRST = ("index", "start")
"""The way from the site's first page to a trained workflow with a report."""
BLOCK = re.compile(r"^```(\w*|{toctree})\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WORDS_A_MINUTE, CHARACTERS_A_MINUTE = 200, 200


def run_blocks(blocks: list[tuple[str, str]], folder: Path) -> tuple[float, int]:
    """Seconds of all blocks and how many were run; Python blocks are one program.

    Raises:
        CalledProcessError: one of them failed.
    """
    programs, seconds, ran = list[str](), 0.0, 0
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    environment = {"PATH": path, "HOME": str(folder), "PYTHONPATH": str(folder), "COLUMNS": "81"}
    for language, text in blocks:
        file = re.match(r'"""(\w+\.py)"""\n', text)
        if file:
            (folder / file[1]).write_text(text, encoding="utf-8")
        elif language == "python":
            programs.append(text)
            ran += 1
        elif language == "shell":
            for line in text.splitlines():
                began = time.perf_counter()
                subprocess.run(
                    ["bash", "-c", line], cwd=folder, env=environment, check=True,
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                )  # fmt: skip
                seconds += time.perf_counter() - began
                ran += 1
                print(f"    {time.perf_counter() - began:6.1f} s  {line}", flush=True)
    if programs:
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", "\n".join(programs)],
            cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        seconds += time.perf_counter() - began
        print(f"    {time.perf_counter() - began:6.1f} s  {len(programs)} blocks of Python")
    return seconds, ran


def install(folder: Path) -> float:
    """Seconds of the start page's installation, from this clone, in a fresh environment."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    words = ["install", "-q", "-c", "constraints.txt", ".[train]"]
    subprocess.run(
        [str(folder / "venv/bin/python"), "-m", "pip", *words], check=True, cwd=DOCS.parent
    )
    return time.perf_counter() - began


def measured(name: str) -> dict[str, Any]:
    """A page: minutes of reading, of typing, and of its commands."""
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    typed = [code for language, code in blocks if language in ("", "python", "shell", "toml")]
    words = len(re.findall(r"\w[\w'-]*", BLOCK.sub("", text)))
    print(f"{name}: {words} words", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        seconds, ran = run_blocks(blocks, Path(folder))
    return {
        "page": name,
        "reading": round(words / WORDS_A_MINUTE, 1),
        "typing": round(sum(map(len, typed)) / CHARACTERS_A_MINUTE, 1),
        "commands": round(seconds / 60, 1),
        "run": ran,
    }


def main() -> None:
    """Measure pages and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="default: all of them")
    parser.add_argument("--install", action="store_true", help="install, too")
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    given = parser.parse_args()
    tutorials = sorted(f"tutorials/{path.stem}" for path in (DOCS / "tutorials").glob("*.md"))
    rows = [measured(name) for name in given.pages or [*FIRST, *tutorials]]
    if given.install:
        with tempfile.TemporaryDirectory() as folder:
            rows.append({"page": "installation", "reading": 0.0, "typing": 0.0,
                         "commands": round(install(Path(folder)) / 60, 1), "run": 1})  # fmt: skip
    print(f"\n{'minutes':24}{'reading':>9}{'typing':>9}{'commands':>9}{'sum':>7}")
    for row in rows:
        each = [row[key] for key in ("reading", "typing", "commands")]
        print(f"{row['page']:24}" + "".join(f"{one:9.1f}" for one in each) + f"{sum(each):7.1f}")
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
