"""Scores of stored replies by flowzoo and by the harnesses, each in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.reconcile.replies import SETS, Stored, stored_endpoint
from flowzoo.agents.evaluation.evaluate import read_episodes
from flowzoo.cli import main as flowzoo
from flowzoo.sandbox import Limits, Program, Sandbox, StdinTest

SCORERS = Path(__file__).parent / "scorers"
HARNESSES = {
    "lm_eval": ["lm_eval[math]==0.4.13", "torch==2.13.0"],
    "lighteval": ["lighteval[math]==0.13.0", "torch==2.13.0"],
    "inspect": ["inspect-ai==0.3.285", "inspect-evals[math]==0.26.0"],
}
"""What is installed for the scorer of each."""


class Score(NamedTuple):
    """What a harness makes of a reply."""

    value: float
    read: str
    """The answer that it found, as text; of a program how its run ended."""


def python_of(harness: str, folder: Path) -> Path:
    """The interpreter of a harness's environment in `folder`, which is made if it is not there."""
    python = folder / harness / "bin" / "python"
    if not python.is_file():
        venv.create(folder / harness, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *HARNESSES[harness]], check=True)
    return python


def harness_scores(harness: str, folder: Path, replies: list[Stored]) -> list[dict[str, Score]]:
    """Score the replies by a harness; its programs run in flowzoo's sandbox."""
    lines = [json.dumps({key: one[key] for key in ("set", "reply", "doc")}) for one in replies]
    done = subprocess.run(
        [python_of(harness, folder), "-W", "ignore", SCORERS / f"score_{harness}.py"],
        input="\n".join(lines),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""},
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    if len(found) != len(replies):
        sys.exit(f"{harness}: {len(found)} rows for {len(replies)} replies")
    programs = {text for row in found for _, score, text in row if score is None}
    runs = run_programs(sorted(programs))
    return [
        {name: runs[text] if score is None else Score(score, text) for name, score, text in row}
        for row in found
    ]


def run_programs(sources: list[str]) -> dict[str, Score]:
    """Run whole programs in the sandbox: right if one ends with status 0, whatever it prints."""
    limits = Limits(cpu_s=10, memory_mb=512)
    runs = {}
    with Sandbox() as sandbox:
        programs = [Program(source) for source in sources]
        verdicts = sandbox.run_sync(programs, [[StdinTest("", "")]] * len(sources), limits)
        for source, verdict in zip(sources, verdicts, strict=True):
            status = verdict.cases[0].status if verdict.cases else verdict.status
            ended = "" if status in ("AC", "WA") else f"{status} {verdict.cases[0].stderr[-200:]}"
            runs[source] = Score(float(not ended), ended)
    return runs


def flowzoo_scores(data: Path, folder: Path, replies: list[Stored]) -> list[Score]:
    """Score replies to one set, equally many to each problem, by `flowzoo eval`.

    Raises:
        SystemExit: the command failed.
    """
    name = replies[0]["set"]
    of_set, numbers = SETS[name], {one["row"] for one in replies}
    command = ["eval", "single", "--task", of_set.task, "--data", str(data / of_set.file)]
    command += ["--n", str(len(numbers)), "--samples", str(len(replies) // len(numbers))]
    command += ["--prompts", "short", "--examples", "0", "--out", str(folder)]
    if not (folder / "summary.json").is_file():
        with stored_endpoint(replies) as url:
            os.environ.setdefault("OPENAI_API_KEY", "none")
            if flowzoo([*command, "--policy", f"openai:stored@{url}"]):
                sys.exit(f"{name}: `flowzoo eval` failed")
    return [*episode_scores(folder, replies)]


def episode_scores(folder: Path, replies: list[Stored]) -> Iterator[Score]:
    """The scores of the episodes with these replies, in their order."""
    column = SETS[replies[0]["set"]].text
    found: dict[str, list[tuple[str, Score]]] = {}
    for record in read_episodes(folder / "episodes.jsonl"):
        (call,) = record.calls
        score = Score(float(record.score), record.answer or "")
        found.setdefault(call.reply, []).append((call.messages[-1]["content"], score))
    for one in replies:
        text = one["doc"][column].strip()
        yield next(score for prompt, score in found[one["reply"]] if text in prompt)
