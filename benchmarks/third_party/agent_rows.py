"""Checks of an agent program in `examples/agents`: evaluated, trained, and an environment."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rows import Row

from flowzoo.cli import main
from flowzoo.envs.external.program import OpenAIProgram
from flowzoo.envs.testing import check_workflow

EPISODES, STEPS = 100, 12


def command(*words: str) -> str:
    """Output of a command of flowzoo, which must succeed."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = main([*words])
    assert status == 0, output.getvalue()[-2000:]
    return output.getvalue()


@dataclass(frozen=True)
class AgentExample:
    """A program of `examples/agents`, and the settings with which it is played."""

    file: str
    options: tuple[str, ...]
    inspect: Callable[[list[dict[str, Any]]], None]
    """Checks the rows of the evaluated episodes."""
    figures: dict[str, str] = field(default_factory=dict)
    """Measurements of the checks, for docs/data/agent-libraries.json."""

    @property
    def program(self) -> str:
        """The program as `--program` takes it."""
        return f"examples/agents/{self.file}:solve"

    @property
    def workflow(self) -> OpenAIProgram:
        """The program as a workflow."""
        settings = dict(option.split("=") for option in self.options)
        return OpenAIProgram(self.program, at_once=int(settings["at_once"]))

    @property
    def settings(self) -> list[str]:
        """Arguments that name the program in a command."""
        return ["--program", self.program, "--options", *self.options]

    def rows(self) -> list[Row]:
        """The rows of the table of libraries."""
        link = f"[{self.file}](../examples/agents/{self.file})"
        train = "`flowzoo train --program`"
        return [
            Row(f"{link}, evaluated twice with equal numbers", self.evaluate, "`flowzoo eval`"),
            Row(f"{link}, {STEPS} steps, a policy for each role; report", self.train, train),
            Row(
                f"{link} in `check_workflow`, with `api_test` and `seed_test`",
                lambda: check_workflow(self.workflow),
                "`flowzoo.envs.OpenAIProgram`",
            ),
        ]

    def evaluate(self) -> None:
        """Episodes of the pocket model and of scripts; a repetition is equal."""
        for policy in ("pocket", "scripted:0.5"):
            first, second = self.episodes(policy), self.episodes(policy)
            assert first == second
            assert len(first) == EPISODES
            assert {row["facts"]["ended"] for row in first} == {"answer"}, first[0]["facts"]
            assert not any(row["facts"]["refused"] for row in first)
            if policy == "pocket":
                self.inspect(first)
                calls = sum(len(row["calls"]) for row in first)
                self.figures["calls"] = f"{calls / EPISODES:.2f}"

    def episodes(self, policy: str) -> list[dict[str, Any]]:
        """Rows of evaluated episodes, in the order of their problems."""
        with tempfile.TemporaryDirectory() as folder:
            number = ["--n", str(EPISODES), "--out", folder]
            command("eval", *self.settings, "--policy", policy, *number)
            lines = (Path(folder) / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
        return sorted(map(json.loads, lines), key=lambda row: str(row["problem"]))

    def train(self) -> None:
        """Every policy is updated in every step, and the report names every role."""
        sizes = ["--steps", str(STEPS), "--problems", "8", "--samples", "8"]
        measured = ["--eval-problems", str(EPISODES), "--eval-every", str(STEPS)]
        with tempfile.TemporaryDirectory() as folder:
            run = ["--sharing", "isolated", *sizes, *measured, "--out", folder]
            command("train", *self.settings, *run)
            command("report", folder)
            summary = json.loads((Path(folder) / "summary.json").read_text(encoding="utf-8"))
            page = (Path(folder) / "report.html").read_text(encoding="utf-8")
        roles = self.workflow.role_counts()
        assert summary["policy_updates"] == dict.fromkeys(roles, STEPS)
        assert all(role in page for role in roles)
        before, after, gain = (
            summary[name] for name in ("accuracy_before", "accuracy_after", "gain")
        )
        low, mean, high = (f"{100 * gain[name]:+.1f}" for name in ("low", "mean", "high"))
        self.figures["before"] = f"{100 * before:.1f} %"
        self.figures["after"] = f"{100 * after:.1f} %"
        self.figures["gain"] = f"{mean} ({low} to {high})"
