"""Inspect: a workflow as a task, answered by what our scripted policies say; logs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from inspect_ai import Task
from inspect_ai import eval as inspect_eval
from inspect_ai.dataset import Sample
from inspect_ai.log import read_eval_log
from inspect_ai.model import GenerateConfig, ModelAPI, ModelOutput, get_model, modelapi
from inspect_ai.scorer import exact
from inspect_ai.solver import generate
from rows import Row, report
from said import recorded

from flowzoo.adapters.inspect_log import write_log
from flowzoo.adapters.inspect_task import workflow_task
from flowzoo.agents import PolicyMap, Sampling
from flowzoo.agents.evaluation.evaluate import read_episodes
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.serving.app import NO_ANSWER
from flowzoo.agents.specs import make_policy
from flowzoo.cli import main as flowzoo
from flowzoo.envs import make_workflow
from flowzoo.envs.records import EpisodeRecord, Usage

N, EPOCHS = 6, 2
LOGS = tempfile.TemporaryDirectory()
"""Samples of a log are read when they are looked at."""
ADAPTER = "`flowzoo.adapters.inspect_task`"


@modelapi(name="said")
class SaidAPI(ModelAPI):
    """Answers a prompt as it was answered before."""

    def __init__(self, model_name: str, said: Any = None, **kwargs: Any) -> None:
        super().__init__(model_name)
        self.said, self.asked = said, 0

    def max_connections(self) -> int:
        """One at a time, so that replies to equal prompts keep their order."""
        return 1

    async def generate(
        self, input: Any, tools: Any, tool_choice: Any, config: GenerateConfig
    ) -> ModelOutput:
        """The next reply to this prompt."""
        self.asked += 1
        return ModelOutput.from_content(self.model_name, self.said[input[-1].text].pop(0))


def evaluate(name: str, models: dict[str, Any]) -> Any:
    """The log of an evaluation."""
    (log,) = inspect_eval(
        workflow_task(name, n=N),
        model=models.pop("model"),
        model_roles=models,
        epochs=EPOCHS,
        log_dir=LOGS.name,
        max_samples=1,
        display="none",
    )
    assert log.status == "success", log.error
    return log


def scores(name: str) -> None:
    """Every sample's score is that of our episode, and so is the mean."""
    records, said = recorded(name, N, EPOCHS)
    log = evaluate(name, {"model": get_model("said/any", said=said)})
    found = sorted(sample.scores["workflow_score"].value for sample in log.samples)
    assert found == sorted(record.score for record in records)
    assert 0 < sum(found) < len(found)
    ours = {record.problem: 0.0 for record in records}
    for record in records:
        ours[record.problem] += record.score
    theirs = dict.fromkeys(ours, 0.0)
    for sample in log.samples:
        theirs[str(sample.id)] += sample.scores["workflow_score"].value
    assert theirs == ours
    mean = log.results.scores[0].metrics["mean"].value
    assert abs(mean - sum(found) / len(found)) < 1e-9


def roles() -> None:
    """A role has a model of its own."""
    _, said = recorded("voting", N, EPOCHS)
    judge, rest = get_model("said/judge", said=said), get_model("said/rest", said=said)
    evaluate("voting", {"model": rest, "aggregator": judge})
    assert (judge.api.asked, rest.api.asked) == (N * EPOCHS, 3 * N * EPOCHS)


def served() -> None:
    """The answers of `flowzoo serve`, asked by Inspect, are those of our rollout."""
    workflow = make_workflow("voting")
    policy = make_policy("pocket", oracle=workflow, sampling=Sampling(0.0, max_tokens=64))
    problems = [workflow.task.problem(index, "validation") for index in range(4 * N)]
    policy_map = PolicyMap.shared(policy, workflow.role_counts())
    ours = [
        record.answer or NO_ANSWER
        for record in Rollout(workflow, policy_map).run(map(EpisodeJob, problems))
    ]
    golds = [Sample(problem.text, target=problem.gold) for problem in problems]
    command = [sys.executable, "-m", "flowzoo.cli", "serve", "voting", "--port", "0"]
    command += ["--temperature", "0", "--max-tokens", "64"]
    variables = {**os.environ, "FLOWZOO_API_KEY": "key"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as server:
        assert server.stdout is not None
        url = re.search(r"http://\S+/v1", server.stdout.readline())
        assert url is not None
        try:
            (log,) = inspect_eval(
                Task(golds, solver=generate(), scorer=exact()),
                model=get_model("openai-api/flowzoo/voting_v0", base_url=url[0], api_key="key"),
                log_dir=LOGS.name,
                display="none",
            )
        finally:
            server.terminate()
    assert log.status == "success", log.error
    theirs = {sample.input: sample.output.completion for sample in log.samples}
    assert [theirs[problem.text] for problem in problems] == ours
    right = sum(answer == problem.gold for answer, problem in zip(ours, problems, strict=True))
    assert abs(log.results.scores[0].metrics["mean"].value - right / len(ours)) < 1e-9
    assert 0 < right < len(ours)
    used = log.stats.model_usage["openai-api/flowzoo/voting_v0"]
    assert used.output_tokens > 0


def logs() -> None:
    """An evaluation of ours is a log with its scores, chats, replies and tokens."""
    folder, path = Path(LOGS.name) / "ours", Path(LOGS.name) / "ours.eval"
    command = ["eval", "voting", "--policy", "scripted:0.6", "--n", str(N)]
    assert flowzoo([*command, "--samples", str(EPOCHS), "--out", str(folder)]) == 0
    records = [odd(record) for record in read_episodes(folder / "episodes.jsonl")]
    rows = "".join(json.dumps(record.to_json()) + "\n" for record in records)
    (folder / "episodes.jsonl").write_text(rows)
    write_log(folder, path)
    log = read_eval_log(str(path), resolve_attachments=True)
    summary = json.loads((folder / "summary.json").read_text())
    metrics = {name: metric.value for name, metric in log.results.scores[0].metrics.items()}
    assert metrics == {"mean": summary["accuracy"], "stderr": summary["stderr"]}
    samples = {f"{sample.id}#{sample.epoch - 1}": sample for sample in log.samples}
    assert samples.keys() == {record.episode for record in records}
    for record in records:
        sample = samples[record.episode]
        assert (sample.input, sample.target) == (record.text, record.gold)
        assert sample.scores["workflow_score"].value == record.score
        for event, call in zip(sample.events, record.calls, strict=True):
            assert (event.role, event.input[-1].text) == (call.role, call.messages[-1]["content"])
            assert event.output.completion == call.reply.replace("\ud800", "\\ud800")
            assert event.output.stop_reason == "max_tokens"
            assert event.output.usage.total_tokens == 12


def odd(record: EpisodeRecord) -> EpisodeRecord:
    """The episode with replies that are no UTF-8, cut off and counted."""
    fields: dict[str, Any] = {"finish": "length", "usage": Usage(7, 5)}
    calls = (replace(call, reply=f"{call.reply} \ud800", **fields) for call in record.calls)
    return replace(record, calls=tuple(calls))


if __name__ == "__main__":
    report(
        "Inspect",
        ["inspect_ai"],
        [
            Row("`voting` as a task; scores are ours", partial(scores, "voting"), ADAPTER),
            Row("`eval_opt` as a task; scores are ours", partial(scores, "eval_opt"), ADAPTER),
            Row("`model_roles`", roles, ADAPTER),
            Row("`openai-api/flowzoo/voting_v0` as a model", served, "`flowzoo serve`"),
            Row("evaluations of `flowzoo eval` as logs", logs, "`flowzoo.adapters.inspect_log`"),
        ],
    )
