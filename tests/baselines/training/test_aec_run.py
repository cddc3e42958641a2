"""Trainers play scripts; played through the AEC environment, the same run has the same bits."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from flowzoo.agents import Request
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout, RolloutBatch
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training import factories
from flowzoo.baselines.training.trainer import train
from flowzoo.envs import EpisodeRecord, SampledReply
from flowzoo.envs.api.registry import make_env


class ScriptRollout(Rollout):
    """The sampler of a run, which keeps its records."""

    played: list[EpisodeRecord]

    async def asample(self, jobs: Iterable[EpisodeJob]) -> RolloutBatch:
        batch = await super().asample(jobs)
        self.played += batch.records
        return batch


class AECRollout(ScriptRollout):
    """Plays jobs through `last` and `step`, agent after agent."""

    async def asample(self, jobs: Iterable[EpisodeJob]) -> RolloutBatch:
        records = [await self.played_by_agents(job) for job in jobs]
        self.played += records
        return RolloutBatch(records, [call for record in records for call in record.calls])

    async def played_by_agents(self, job: EpisodeJob) -> EpisodeRecord:
        env, turns = make_env(self.workflow), Counter[str]()
        env.reset(options={"index": job.problem.index, "sample": job.sample})
        for agent in env.agent_iter():
            observation, _, terminated, truncated, _ = env.last()
            if terminated or truncated:
                env.step(None)
                continue
            key = (self.seed, job.problem.id, job.sample, agent, turns[agent])
            policy = self.policy_map.policy(agent)
            role = agent.rpartition("_")[0]
            [said] = await policy.generate([Request(key, agent, role, observation["messages"])])
            env.step(
                SampledReply(
                    said.text, policy=policy.name, prompt_ids=said.prompt_ids,
                    output_ids=said.output_ids, logps=said.logps, finish=said.finish,
                    version=said.version, writers=said.writers,
                )
            )  # fmt: skip
            turns[agent] += 1
        return env.record()


@pytest.fixture
def bits(tmp_path, monkeypatch, repeated_rows):
    """`bits(sampler)`: all that a short run of voting leaves, with its training records."""

    def run(sampler: type[ScriptRollout]) -> dict[str, Any]:
        root: Path = tmp_path / sampler.__name__
        sampler.played = []
        monkeypatch.setattr(factories, "Rollout", sampler)
        train(
            TrainConfig(
                model="pocket:xs", steps=2, problems=2, samples=4, eval_problems=2, lr=1e-3,
                max_batch=1,  # the last bits of log-probs depend on what is sampled beside them
                transcripts_every=1, threads=1, out=str(root),
            )
        )  # fmt: skip
        files = {
            str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in root.rglob("*")
            if path.suffix in (".safetensors", ".pt") or path.parent.name == "transcripts"
        }
        records = [json.dumps(record.to_json()) for record in sampler.played]
        return {"records": records, "rows": repeated_rows(root), "files": files}

    return run


def test_a_run_played_through_the_aec_environment_has_the_same_bits(bits):
    script, aec = bits(ScriptRollout), bits(AECRollout)
    assert len(script["records"]) == 2 * 2 * 4
    assert all(call["logps"] for call in json.loads(script["records"][0])["calls"])
    assert aec["records"] == script["records"]
    assert aec["rows"] == script["rows"]  # advantages, losses and gradients among them
    assert aec["files"] == script["files"]  # weights, optimizer, transcripts with advantages
    assert {Path(name).suffix for name in aec["files"]} == {".safetensors", ".pt", ".jsonl"}
    losses = [row["learn/grad_norm/shared"] for row in script["rows"][1:]]
    assert all(losses), "something was learned"
