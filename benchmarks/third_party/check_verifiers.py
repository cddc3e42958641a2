"""verifiers: workflows as environments with a seat for every role, over a server on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from rows import Row, report
from said import recorded, serving
from verifiers.v1.utils.loaders import environment_class, load_environment

from flowzoo.adapters import verifiers_env

ADAPTER = "`flowzoo.adapters.verifiers_env.plugin`"
N = 6


async def play(taskset: str, url: str, **seats: Any) -> list[Any]:
    """An episode of every task, one after the other."""
    kind: Any = environment_class(taskset)
    config = kind.__orig_bases__[0].__args__[0]
    env = load_environment(config.model_validate({"taskset": {"id": taskset}, **seats}))
    client = vf.EvalClientConfig(base_url=url, api_key_var="SAID_KEY")
    ctx = vf.ModelContext(model="run", client=client)
    async with env.serving():
        return [await env.run_episode(task, ctx) for task in env.taskset]


def rewards(name: str) -> None:
    """Every trace is paid what our call was paid, in seats of the same names."""
    records, said = recorded(name, N, split="train")
    with serving(said) as (url, _):
        episodes = asyncio.run(play(f"flowzoo_{name}", url))
    assert len(episodes) == len(records)
    for episode, record in zip(episodes, records, strict=True):
        assert episode.ok, episode.errors
        assert episode.task.data.id == record.problem
        found = [(t.agent.name, t.metrics["phase"], t.metrics["slot"], t.reward, t.last_reply)
                 for t in episode.traces]  # fmt: skip
        wanted = [(c.role, c.phase, c.slot, c.reward, c.reply.strip()) for c in record.calls]
        assert sorted(found) == sorted(wanted)
        assert {trace.metrics["score"] for trace in episode.traces} == {record.score}
    assert len({trace.reward for episode in episodes for trace in episode.traces}) > 1


def models() -> None:
    """A seat plays with the model that its field names."""
    _, said = recorded("voting", N, split="train")
    with serving(said) as (url, asked):
        asyncio.run(play("flowzoo_voting", url, aggregator={"model": "judge"}))
    assert asked == {"run": 3 * N, "judge": N}


def command() -> None:
    """The command of the adapter's docstring; scores are those of our episodes."""
    docstring = (verifiers_env.__doc__ or "").replace("\\\n", " ")
    words = shlex.split(next(line for line in docstring.splitlines() if "vf-eval" in line))
    records, said = recorded("voting", N, split="train")
    with serving(said) as (url, asked), tempfile.TemporaryDirectory() as folder:
        words[words.index("--client.base-url") + 1] = url
        program = Path(sys.executable).with_name(words[0])
        paths = os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"]])
        variables = {**os.environ, "OPENAI_API_KEY": "none", "PYTHONPATH": paths}
        subprocess.run(
            [program, *words[1:]], check=True, capture_output=True, cwd=folder, env=variables
        )
        (file,) = Path(folder).rglob("traces.jsonl")
        episodes = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert asked == {"M": 3 * N, "N": N}
    assert all(episode["ok"] for episode in episodes)
    scores = {
        episode["task"]["data"]["id"]: episode["traces"][0]["metrics"]["score"]
        for episode in episodes
    }
    assert scores == {record.problem: record.score for record in records}


if __name__ == "__main__":
    os.environ["SAID_KEY"] = "none"
    report(
        "verifiers",
        ["verifiers"],
        [
            Row(
                "`Env` of `voting`, a seat a role; rewards are ours",
                partial(rewards, "voting"),
                ADAPTER,
            ),
            Row("`Env` of `eval_opt`; rewards are ours", partial(rewards, "eval_opt"), ADAPTER),
            Row("`AgentConfig.model` of a seat", models, ADAPTER),
            Row("`vf-eval` from the command line", command, ADAPTER),
        ],
    )
