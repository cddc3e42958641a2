"""`flowzoo dataset`: recorded episodes as Parquet tables."""

from dataclasses import dataclass, field
from pathlib import Path

from flowzoo.baselines.run.dataset import write_dataset
from flowzoo.commands.shared import check_folder


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo dataset`."""

    sources: tuple[Path, ...] = field(metadata={"positional": "FOLDER [FOLDER ...]"})
    """Folders of `flowzoo eval --out`, and run directories of `flowzoo train`."""
    out: Path
    """Folder to write; it must be new or empty."""


def run(options: Options) -> int:
    """Write the tables and print their size."""
    check_folder("out", options.out)
    written = write_dataset(options.sources, options.out)
    print(f"{written.episodes:,} episodes with {written.replies:,} replies in {options.out}")
    print(f'load_dataset({str(options.out)!r}, "replies", split="train"), and "episodes"')
    return 0
