"""Checks of an agent program in `examples/agents`: evaluated, trained, and an environment."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rows import Row
from said import answering

from flowzoo.agents.pocket import pocket_path
from flowzoo.cli import main
from flowzoo.envs import Episode
from flowzoo.envs.external.program import OpenAIProgram
from flowzoo.envs.testing import advance, check_workflow
from flowzoo.envs.tools import call_text

Body = dict[str, Any]
EPISODES, TAUGHT, STEPS = 100, 200, 12
TEMPLATE = """\
{%- for tool in tools or [] -%}
{{- '<|im_start|>tool\n' + tool.function.name + '<|im_end|>\n' -}}
{%- endfor -%}
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\n' + message.content -}}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>' + (call.function | tojson) + '</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""
"""The pocket models' chat template with tools: their names, and calls as Hermes has them."""


def command(*words: str) -> None:
    """Run a command of flowzoo, which must succeed."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = main([*words])
    assert status == 0, output.getvalue()[-2000:]


def played(solve: Callable[..., Any], *replies: str) -> str | None:
    """Answer of a program whose agents `a`, `b` and `c` give these replies.

    Raises:
        RuntimeError: the program failed.
    """
    workflow = OpenAIProgram(solve, roles="a,b,c", at_once=1)
    episode, left = Episode(workflow, workflow.task.problem(0), "e"), [*replies]
    advance(episode)
    while not episode.done:
        for turn in list(episode.waiting):
            episode.reply(turn.agent, left.pop(0))
        advance(episode)
    outcome = episode.finished()
    if outcome.facts["failed"]:
        raise RuntimeError(outcome.facts["reason"])
    assert not left
    return outcome.answer


def called(name: str, **arguments: Any) -> str:
    """A reply that calls a tool."""
    return call_text(json.dumps({"name": name, "arguments": arguments}))


def call_of(name: str, **arguments: Any) -> Body:
    """A message that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": "0", "type": "function", "function": function}
    return {"content": None, "tool_calls": [call]}


@dataclass(frozen=True)
class AgentExample:
    """A program of `examples/agents`, and how it is played."""

    file: str
    inspect: Callable[[list[Body]], None]
    """Checks the rows of the evaluated episodes."""
    expert: Callable[[Body], Body] | None = None
    """Answers for `callers`, from the body of a request."""
    callers: tuple[str, ...] = ()
    """Roles that call tools, which no pocket model was taught: the expert shows it to them."""
    at_once: int = 1
    figures: dict[str, str] = field(default_factory=dict)
    """Measurements of the checks, for docs/data/agent-libraries.json."""

    @property
    def program(self) -> str:
        """The program as `--program` takes it."""
        return f"examples/agents/{self.file}:solve"

    @property
    def workflow(self) -> OpenAIProgram:
        """The program as a workflow."""
        return OpenAIProgram(self.program, at_once=self.at_once)

    @property
    def settings(self) -> list[str]:
        """Arguments that name the program in a command."""
        return ["--program", self.program, "--options", f"at_once={self.at_once}"]

    @property
    def others(self) -> list[str]:
        """Roles that call no tools."""
        return [role for role in self.workflow.role_counts() if role not in self.callers]

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

    # -- evaluation ----------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Episodes of scripts, and of models with experts; a repetition is equal."""
        for policies in (lambda: contextlib.nullcontext(["scripted:0.5"]), self.team):
            both = []
            with policies() as words:
                for _ in range(2):
                    with tempfile.TemporaryDirectory() as folder:
                        both.append(self.episodes(words, folder, "--n", str(EPISODES)))
            episodes, again = both
            assert episodes == again
            assert len(episodes) == EPISODES
            assert {row["facts"]["ended"] for row in episodes} == {"answer"}
            assert not any(row["facts"]["refused"] for row in episodes)
        self.inspect(episodes)
        calls = sum(len(row["calls"]) for row in episodes)
        self.figures["calls an episode"] = f"{calls / EPISODES:.2f}"

    @contextlib.contextmanager
    def team(self) -> Iterator[list[str]]:
        """Policies: the expert for the roles that call tools, the pocket model for the others."""
        if self.expert is None:
            yield ["pocket"]
            return
        with answering(self.expert) as url:
            experts = [f"{role}=openai:expert@{url}" for role in self.callers]
            yield [*experts, *(f"{role}=pocket" for role in self.others)]

    def episodes(self, policies: list[str], folder: str, *more: str) -> list[Body]:
        """Rows of evaluated episodes, in the order of their problems."""
        command("eval", *self.settings, "--policy", *policies, "--out", folder, *more)
        lines = (Path(folder) / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
        rows = sorted(map(json.loads, lines), key=lambda row: str(row["problem"]))
        for call in (call for row in rows for call in row["calls"]):
            del call["logps"]  # rounded as the batch is made up, which an endpoint's time decides
        return rows

    # -- training ------------------------------------------------------------------------------

    def train(self) -> None:
        """Every policy is updated, and the report names every role."""
        sizes = ["--steps", str(STEPS), "--problems", "8", "--samples", "8"]
        measured = ["--eval-problems", str(EPISODES), "--eval-every", str(STEPS)]
        with tempfile.TemporaryDirectory() as folder:
            models = self.warm_start(Path(folder)) if self.callers else []
            out = Path(folder) / "run"
            run = [*sizes, *measured, "--sharing", "isolated", *models, "--out", str(out)]
            command("train", *self.settings, *run)
            command("report", str(out))
            summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
            page = (out / "report.html").read_text(encoding="utf-8")
        roles = self.workflow.role_counts()
        assert summary["policy_updates"].keys() == roles.keys()
        assert all(summary["policy_updates"].values())
        assert all(role in page for role in roles)
        for name, when in (("before", "accuracy before"), ("after", f"after {STEPS} steps")):
            self.figures[when] = f"{100 * summary[f'accuracy_{name}']:.1f} %"
        mean, low, high = (
            f"{100 * summary['gain'][name]:+.1f}" for name in ("mean", "low", "high")
        )
        self.figures["points, 95 % interval"] = f"{mean} ({low} to {high})"

    def warm_start(self, folder: Path) -> list[str]:
        """Teach the roles that call tools the expert's calls; arguments that name the models."""
        base = folder / "base"
        shutil.copytree(pocket_path("math"), base)
        (base / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
        episodes, taught = str(folder / "expert"), folder / "taught"
        with self.team() as words:
            self.episodes(words, episodes, "--n", str(TAUGHT), "--split", "train")
        command(
            "sft", *self.settings, "--source", episodes, "--model", str(base), "--threshold", "0",
            "--sharing", "isolated", "--frozen", *self.others, "--epochs", "14", "--lr", "3e-3",
            "--eval-problems", "20", "--out", str(taught),
        )  # fmt: skip
        models = [f"{role}={taught / 'models' / role}" for role in self.callers]
        return ["--model", str(base), "--models", *models]
