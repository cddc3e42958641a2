"""Reads an evaluation that `flowzoo eval --out` wrote, finished or not."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowzoo.agents.evaluation.evaluate import read_episodes, read_latencies
from flowzoo.agents.evaluation.intervals import evaluation_intervals
from flowzoo.agents.evaluation.majority import read_summary
from flowzoo.agents.evaluation.summary import summarize
from flowzoo.agents.evaluation.usage import Seconds, usage_summary
from flowzoo.envs import EpisodeRecord
from flowzoo.errors import UsageError
from flowzoo.files import distinct_names, read_rows


@dataclass(frozen=True, slots=True)
class EvaluationData:
    """An evaluation directory."""

    folder: Path
    name: str
    """Name of the evaluation, unique on a page."""
    summary: Mapping[str, Any]
    """As `flowzoo eval` wrote it; of the episodes alone where `finished` is False."""
    records: Sequence[EpisodeRecord]
    """Episodes in the order of their problems and samples."""
    finished: bool
    """True if the summary is of all episodes in the directory."""

    @property
    def roles(self) -> list[str]:
        """The roles, in the order of the summary."""
        return list(self.summary["roles"])


def evaluation_files(folder: Path) -> list[Path]:
    """The files that `read_evaluation` reads."""
    names = ("summary.json", "episodes.jsonl", "latencies.jsonl")
    return [folder / name for name in names]


def read_evaluations(folders: Sequence[Path]) -> list[EvaluationData]:
    """The evaluations in `folders`, named by the last parts of their paths that differ."""
    names = distinct_names(folders)
    return [read_evaluation(folder, name) for folder, name in zip(folders, names, strict=True)]


def read_evaluation(folder: Path, name: str = "") -> EvaluationData:
    """The evaluation in `folder`; `name` is by default that of the directory.

    Raises:
        UsageError: it has no episode yet.
        DataError: a file is damaged.
    """
    summary_path, episodes_path, latencies_path = evaluation_files(folder)
    # A problem's id ends with its index.
    records = sorted(
        read_episodes(episodes_path),
        key=lambda record: (
            record.problem.rstrip("0123456789"), _number_at_end(record.problem), sample_of(record),
        ),
    )  # fmt: skip
    if not records:
        raise UsageError(
            f"{folder} has no episodes ({episodes_path.name}): repeat the command of `flowzoo eval`"
        )
    summary = read_summary(folder) if summary_path.exists() else {}
    finished = summary.get("episodes") == len(records)
    if not finished:
        seconds: dict[str, Seconds] = dict(
            read_rows(latencies_path, read_latencies, "the latencies of an episode")
        )
        summary = {
            **summarize(records),
            "intervals": evaluation_intervals(records),
            "usage": usage_summary(records, seconds, {}),
        }
    return EvaluationData(folder, name or folder.resolve().name, summary, records, finished)


def sample_of(record: EpisodeRecord) -> int:
    """Index of an episode among the episodes of its problem."""
    return _number_at_end(record.episode)


def _number_at_end(name: str) -> int:
    return int(re.search(r"[0-9]*$", name)[0] or 0)  # type: ignore[index] - it always matches
