"""verifiers: policies of flowzoo beside the seats."""

import asyncio
import sys
from collections import Counter

import pytest

vf = pytest.importorskip("verifiers.v1")

from benchmarks.third_party.said import answering  # noqa: E402 - after the check of the library

MODULE = """
from flowzoo.adapters.verifiers_env import CallHarness, plugin
Tasks, Env = plugin("voting", others={"generator": "scripted:0.5"}, problems=3)
__all__ = ["CallHarness", "Env", "Tasks"]
"""


def test_policies_play_the_agents_that_others_names(tmp_path, monkeypatch):
    from verifiers.v1.utils.loaders import environment_class, load_environment

    (tmp_path / "flowzoo_beside.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("SAID_KEY", "none")
    monkeypatch.delitem(sys.modules, "flowzoo_beside", raising=False)
    kind = environment_class("flowzoo_beside")
    config = kind.__orig_bases__[0].__args__[0]
    assert set(config.model_fields) - set(vf.EnvConfig.model_fields) == {"aggregator"}
    env = load_environment(config.model_validate({"taskset": {"id": "flowzoo_beside"}}))

    async def play(url):
        client = vf.EvalClientConfig(base_url=url, api_key_var="SAID_KEY")
        ctx = vf.ModelContext(model="run", client=client)
        async with env.serving():
            return [await env.run_episode(task, ctx) for task in env.taskset]

    asked = Counter()

    def message(body):
        asked[body["model"]] += 1
        return {"content": "\\boxed{1}"}

    with answering(message) as url:
        episodes = asyncio.run(play(url))
    assert asked == {"run": 3}
    for episode in episodes:
        assert episode.ok, episode.errors
        (trace,) = episode.traces
        assert (trace.agent.name, trace.last_reply) == ("aggregator", "\\boxed{1}")
        assert trace.reward == trace.metrics["score"]
