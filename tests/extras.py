"""The wheel, installed without extras and with some, and what users do with each installation.

    python tests/extras.py [--uv UV [--pins FILE]] [--wheel FILE]

Fresh environments: the core; the core with pytest, for the packages of `flowzoo new`; `[train]`;
`[train,report]`. `installed.py` has what is done in each; of the core also `core_only.py` and what
type checkers see of it. Runs with the development environment, for its tools. Exit status 1 if
anything failed; the output says what.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LARGEST = int(9.5 * 2**20)
"""Bytes of the wheel; 8.1 million are those of the pocket models."""
TOOLS = Path(sys.executable).parent


class Installation:
    """An environment of its own with the wheel."""

    def __init__(self, folder: Path, uv: str, pins: str, python: str) -> None:
        """Make it, empty; `uv` installs with `pins` if it is named, else pip."""
        self.folder, self._uv, self._pins = folder, uv, pins
        self.python = str(folder / "bin/python")
        run([python, "-m", "venv", str(folder)])

    def install(self, *packages: str) -> None:
        """Install packages in the versions that are tested together.

        Raises:
            SystemExit: nothing could install them, or a package has another hash than in the pins.
        """
        if self._uv:
            quick = [self._uv, "pip", "install", "-q", "--python", self.python, "-c"]
            done = subprocess.run(
                [*quick, str(ROOT / self._pins), *packages], stderr=subprocess.PIPE, text=True
            )
            print(done.stderr, end="", file=sys.stderr, flush=True)
            if not done.returncode:
                return
            if "hash mismatch" in done.stderr.lower():
                sys.exit(f"extras: a package has another hash than in {self._pins}")
            print(f"extras: pip installs {' '.join(packages)}, which checks no hashes", flush=True)
        pip = [self.python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        run([*pip, "-c", str(ROOT / "constraints.txt"), *packages])

    def use(self, *args: str | Path) -> None:
        """Run its interpreter in a folder without the source."""
        run([self.python, *map(str, args)], cwd=self.folder.parent)


def run(command: list[str], cwd: Path | None = None) -> None:
    """Run a command, without the settings that would show it the source.

    Raises:
        SystemExit: it failed.
    """
    left_out = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    env = {name: value for name, value in os.environ.items() if name not in left_out}
    env |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg"}
    done = subprocess.run(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"extras: this failed with status {done.returncode}: {' '.join(command)}")


def build(folder: Path) -> Path:
    """Build the wheel into `folder`."""
    os.environ["PIP_CONSTRAINT"] = str(ROOT / "constraints.txt")
    run([sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)])
    del os.environ["PIP_CONSTRAINT"]
    (wheel,) = folder.glob("flowzoo-*.whl")
    return wheel


def told(what: str) -> None:
    """Say that a part is over, and the CPU time of all so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"-- {what}: {used.ru_utime + used.ru_stime:.0f} s of CPU time so far", flush=True)


def check_core(core: Installation, wheel: Path, scratch: Path) -> None:
    """The core alone, and with pytest."""
    core.install(str(wheel))
    core.use("-I", "core_only.py")
    checked = str(scratch / "typed_client.py")
    settings = str(ROOT / "pyproject.toml")
    mypy = [str(TOOLS / "mypy"), "--config-file", settings, "--python-executable", core.python]
    run([*mypy, checked], cwd=scratch)
    run([str(TOOLS / "pyright"), "--pythonpath", core.python, checked], cwd=scratch)
    told("the core's import and types")
    core.use("installed.py", ROOT)
    told("what is done with the core")
    packages = (("workflow", "relay"), ("task", "riddle"), ("package", "panel"))
    for kind, name in packages:
        core.use("-m", "flowzoo", "new", kind, name)
        core.install("-e", f"{scratch / name}[test]")
    core.use("-m", "pytest", "-q", *(name for _, name in packages))
    core.use("-m", "flowzoo", "play", "relay", "--policy", "scripted:0.8")
    told("packages of `flowzoo new`, with pytest")


def check_training(trained: Installation, wheel: Path) -> None:
    """The extra `train`, and `report` beside it."""
    present: list[str] = []
    for extra in ("train", "report"):
        present.append(extra)
        trained.install(f"{wheel}[{','.join(present)}]")
        told(f"installing [{','.join(present)}]")
        trained.use("installed.py", ROOT, *present)
        told(f"what is done with [{','.join(present)}]")


def main() -> None:
    """Build, install, try."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uv", default="", help="the program uv, which installs faster than pip")
    parser.add_argument("--pins", default="constraints.txt", help="the versions that uv installs")
    parser.add_argument("--wheel", type=Path, help="a wheel that is built already")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        wheel = options.wheel or build(scratch / "dist")
        size = wheel.stat().st_size
        print(f"{wheel.name}: {size} bytes", flush=True)
        if size > LARGEST:
            sys.exit(f"extras: the wheel is larger than {LARGEST} bytes")
        for name in ("core_only.py", "typed_client.py", "installed.py", "blocks.py"):
            shutil.copy(ROOT / "tests" / name, scratch)
        uv = str(Path(options.uv).resolve()) if options.uv else ""
        base = str(Path(sys.base_prefix, "bin/python3"))
        check_core(Installation(scratch / "core", uv, options.pins, base), wheel.resolve(), scratch)
        trained = Installation(scratch / "train", uv, options.pins, base)
        check_training(trained, wheel.resolve())
    print(f"extras: nothing failed, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
