"""`flowzoo regrade`: stored episodes judged again by the grader and the sandbox of today."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from flowzoo.agents.evaluation.regrade import Regrading, State, read_saved, regrade
from flowzoo.agents.evaluation.summary import is_evaluation
from flowzoo.baselines.settings.file import from_table
from flowzoo.baselines.settings.preflight import with_prompts
from flowzoo.commands.problems import ProblemOptions, build_played
from flowzoo.commands.progress.shown import shown_progress
from flowzoo.commands.shared import CodeOptions
from flowzoo.envs import Workflow
from flowzoo.errors import DataError, UsageError
from flowzoo.files import read_json
from flowzoo.permission import PERMISSION
from flowzoo.provenance import grader_digest
from flowzoo.sandbox.tier import SandboxName, usable_tier

_NAMED = 3
"""Episodes that a line names."""


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo regrade`."""

    folder: Path = field(metadata={"positional": "FOLDER"})
    """Directory of an evaluation (`flowzoo eval --out`) or of a training run. Nothing in it is
    changed."""
    step: int | None = None
    """Step of the training run's evaluation; default: the last one."""
    sandbox: SandboxName | None = None
    """Isolation of programs; default: the recorded one if it confines programs and is usable here,
    else the best one on this machine."""
    code: CodeOptions = field(default_factory=CodeOptions)
    json: bool = False
    """Print the verdict on every episode as one JSON object."""


@dataclass(frozen=True, slots=True)
class StoredEpisodes:
    """Episodes as a command has stored them."""

    title: str
    workflow: Workflow
    episodes: Sequence[Mapping[str, Any]]
    grader: str
    """Digest of the code that judged them; empty: not recorded."""


def run(options: Options) -> int:
    """Judge the episodes again and print what changed."""
    stored = read_stored(options)
    began = time.perf_counter()
    with shown_progress("regrading", len(stored.episodes)) as progress:
        result = Regrading(regrade(stored.workflow, stored.episodes, progress.show))
    seconds = time.perf_counter() - began
    if options.json:
        print(json.dumps({**as_json(stored, result), "seconds": seconds}))
    else:
        print("\n".join(lines(stored, result, seconds)))
    return 0


def read_stored(options: Options) -> StoredEpisodes:
    """Read the stored episodes and build the workflow that played them."""
    folder = options.folder
    if not (folder / "run.json").is_file():
        raise UsageError(
            f"expected the directory of an evaluation or a training run, got {folder}: it has no "
            "run.json"
        )
    stored = (read_evaluation if is_evaluation(folder) else read_training)(folder, options)
    if not stored.episodes:
        raise UsageError(f"{folder} has no stored episodes: nothing can be judged again")
    return stored


def read_evaluation(folder: Path, options: Options) -> StoredEpisodes:
    """The episodes of `flowzoo eval --out`."""
    if options.step is not None:
        raise UsageError(f"`step` is of a training run, and {folder} is an evaluation")
    record = read_json(folder / "run.json")
    settings = record.get("settings")
    if not isinstance(settings, dict) or not {"problems", "env", "policies"} <= settings.keys():
        raise DataError(f"{folder / 'run.json'} has no settings of an evaluation")
    PERMISSION.note(str(folder / "run.json"), settings)
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in settings["problems"].items()
        if name in ProblemOptions.__dataclass_fields__
    }
    problems = ProblemOptions(**values)
    refuse_others(folder, settings["env"] or problems.program)
    if "sandbox" in record.get("grading", {}):
        problems = replace(problems, sandbox=options.sandbox or usable_tier(record["grading"]))
    specs = tuple(settings["policies"]["policy"])
    workflow = build_played("regrade", settings["workflow"], None, problems, specs)
    episodes, provenance = read_saved(folder / "episodes.jsonl"), record.get("provenance", {})
    return StoredEpisodes(str(folder), workflow, episodes, str(provenance.get("grader", "")))


def read_training(folder: Path, options: Options) -> StoredEpisodes:
    """The episodes of an evaluation during a training run."""
    from flowzoo.baselines.run.reading import read_run  # late: it needs an extra

    data = read_run(folder, folder.name)
    config = from_table(data.settings, str(folder / "run.json"))
    refuse_others(folder, config.env or config.program)
    files = data.transcript_files("eval")
    step = max(files, default=0) if options.step is None else options.step
    if step not in files:
        raise UsageError(
            f"{folder} has no episodes of an evaluation at step {step}: expected one of "
            f"{', '.join(map(str, sorted(files))) or 'none'}"
        )
    if "sandbox" in data.grading:
        config = replace(config, sandbox=options.sandbox or usable_tier(data.grading))
    workflow, _ = with_prompts(config)
    episodes, grader = read_saved(files[step]), str(data.provenance.get("grader", ""))
    return StoredEpisodes(f"{folder}, step {step}", workflow, episodes, grader)


def refuse_others(folder: Path, played: str | None) -> None:
    """Refuse episodes of environments and programs of others."""
    if played:
        raise UsageError(
            f"the episodes in {folder} were played by {played}, whose own results are not stored: "
            "regrade judges workflows with a task"
        )


def lines(stored: StoredEpisodes, result: Regrading, seconds: float) -> Iterator[str]:
    """The result for people; `seconds` is the time that it took."""
    now = grader_digest()
    then = stored.grader or "not recorded"
    graders = f"grader {now}, as then" if then == now else f"grader then {then}, now {now}"
    count = f"{len(result.episodes):,} episodes of {stored.title}"
    yield f"{count} judged again in {seconds:.1f} s; {graders}"
    states = [(state, result.count(state)) for state in get_args(State)]
    yield ", ".join(f"{count:,} {state}" for state, count in states if count or state == "same")
    for reason, episodes in result.reasons().items():
        more = f" and {len(episodes) - _NAMED:,} more" if len(episodes) > _NAMED else ""
        yield f"  {len(episodes):,}  {reason}: {', '.join(episodes[:_NAMED])}{more}"
    if not result.scores:
        yield "accuracy unknown: no episode has a score of today"
        return
    before, after = result.accuracies()
    line = f"accuracy {100 * before:.1f} -> {100 * after:.1f} %"
    if len(result.scores) < len(result.episodes):
        line += f" of the {len(result.scores):,} episodes with both scores"
    if ends := result.interval():
        low, high = (100 * end for end in ends)
        change = f"{100 * (after - before):+.1f} points"
        line += f", {change} (95 % interval {low:+.1f} to {high:+.1f}, paired by problem)"
    yield line


def as_json(stored: StoredEpisodes, result: Regrading) -> dict[str, Any]:
    """The result as plain values."""
    then, now = result.accuracies() if result.scores else (None, None)
    return {
        "source": stored.title,
        "grader": {"then": stored.grader or None, "now": grader_digest()},
        "states": {state: result.count(state) for state in get_args(State)},
        "accuracy": {"then": then, "now": now} if result.scores else None,
        "interval": result.interval() if result.scores else None,
        "episodes": [asdict(row) for row in result.episodes],
    }
