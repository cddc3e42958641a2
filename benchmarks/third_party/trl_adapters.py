"""TRL's GRPO trainers on our workflows, beside our own rollouts and advantages."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trl
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from flowzoo.adapters.trl_spec import SeatError, TRLSpec
from flowzoo.adapters.trl_worker import TRLRolloutWorker
from flowzoo.agents import Completion, PolicyMap, Sampling
from flowzoo.agents.hf.policy import TransformersPolicy
from flowzoo.agents.pocket import pocket_path
from flowzoo.agents.policy import Batching, Request
from flowzoo.agents.problems import ProblemStream
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.specs import make_policy
from flowzoo.baselines.advantages.compute import RunningMean, compute, episode_returns
from flowzoo.baselines.settings.algorithms import algorithm_named
from flowzoo.envs import EpisodeRecord, make_workflow
from flowzoo.envs.tasks.task import get_problem
from flowzoo.seeding import key_int

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
QWEN3 = (Path(str(trl.__file__)).parent / "chat_templates" / "qwen3.jinja").read_text(
    encoding="utf-8"
)
"""It renders tool calls, as TRL requires; without tools a prompt is the pocket model's own."""


GROUP = 4


class SaidPolicy:
    """Says what was said before, in its order for each key of problem, sample, agent and turn."""

    batching: Batching = "stream"
    name = "said"

    def __init__(self, said: dict[tuple[str, int, str, int], str]) -> None:
        """Keep the replies."""
        self._said = said

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """See `Policy`."""
        return [Completion(self._said[request.key[1:]]) for request in requests]  # type: ignore[index]

    async def close(self) -> None:
        """Nothing to release."""


def our_episode(
    spec: TRLSpec, others: str, row: Mapping[str, Any], replies: Sequence[str]
) -> EpisodeRecord:
    """Our own rollout of a row of the data set in which the agent replies so."""
    workflow, agent, sample = spec.workflow, row["agent"], row["sample"]
    problem = get_problem(workflow.task, row["index"], spec.split)
    said = {(problem.id, sample, agent, turn): text for turn, text in enumerate(replies)}
    rest = make_policy(others, oracle=workflow, seed=spec.seed)
    policy_map = PolicyMap({**dict.fromkeys(workflow.role_counts(), rest), agent: SaidPolicy(said)})
    (record,) = Rollout(workflow, policy_map, seed=spec.seed).run([EpisodeJob(problem, sample)])
    return record


def tokenizer() -> Any:
    """The pocket model's, with a template that knows tools."""
    made: Any = AutoTokenizer.from_pretrained(str(pocket_path("math")))
    made.chat_template = QWEN3
    return made


def settings(folder: str, **more: Any) -> GRPOConfig:
    """A small GRPO on the CPU."""
    return GRPOConfig(
        folder, per_device_train_batch_size=8, num_generations=GROUP, report_to=[], use_cpu=True,
        bf16=False, disable_tqdm=True, logging_strategy="no", save_strategy="no",
        learning_rate=1e-3, temperature=1.0, seed=0, **more,
    )  # fmt: skip


def train(spec: TRLSpec, kind: type[GRPOTrainer] = GRPOTrainer, **more: Any) -> list[Any]:
    """A few steps; returns what the reward function was given and what it gave."""
    (reward,) = spec.reward_funcs
    seen: list[Any] = []

    def watched(environments: Any, completions: Any, **columns: Any) -> list[float | None]:
        found = reward(environments, completions, **columns)
        rows = [
            {"index": index, "sample": sample, "agent": agent}
            for index, sample, agent in zip(
                columns["index"], columns["sample"], columns["agent"], strict=True
            )
        ]
        seen.extend(zip(rows, completions, found, strict=True))
        return found

    model = AutoModelForCausalLM.from_pretrained(str(pocket_path("math")))
    before = model.lm_head.weight.detach().clone()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer: Any = kind(
            model=model,
            args=settings(folder, **more),
            train_dataset=spec.train_dataset,
            environment_factory=spec.environment_factory,
            reward_funcs=[watched],
            processing_class=tokenizer(),
        )
        trainer.train()
    paid = [found for *_, found in seen]
    groups = [set(paid[start : start + GROUP]) for start in range(0, len(paid), GROUP)]
    learned = bool((model.lm_head.weight.detach() != before).any())
    assert learned == any(len(group) > 1 for group in groups)
    return seen


def one_role() -> None:
    """Three steps on the aggregator of voting; rewards are those of our rollout."""
    others = "scripted:0.5"
    spec = TRLSpec("voting", "aggregator", others=others, problems=8, samples=2, seed=3)
    seen = train(spec, max_steps=3, max_completion_length=48)
    assert len(seen) == 24
    for row, completion, found in seen:
        ours = our_episode(spec, others, row, [completion[-1]["content"]])
        assert ours.returns["aggregator_0"] == found
    assert len({found for *_, found in seen}) > 1
    again = pickle.loads(pickle.dumps(spec))  # noqa: S301 - our own
    row = spec.train_dataset[0]
    assert again.environment_factory().reset(**row) == spec.environment_factory().reset(**row)


def role_of_several() -> None:
    """The same for a role of three agents, of which an episode may ask fewer."""
    others = "scripted:0.5"
    spec = TRLSpec("orch_workers", "worker", others=others, problems=8, seed=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agents = [*spec.train_dataset["agent"]]
    assert any("rows are left out" in str(warning.message) for warning in caught)
    assert agents.count("worker_0") == 8 > agents.count("worker_2") > 0
    seen = train(spec, max_steps=6, max_completion_length=48)
    assert {row["agent"] for row, *_ in seen} == {"worker_0", "worker_1", "worker_2"}
    for row, completion, found in seen:
        ours = our_episode(spec, others, row, [completion[-1]["content"]])
        assert ours.returns[row["agent"]] == found


class Calling(GRPOTrainer):
    """Instead of sampling: calls the tool, with the right answer in every second first call."""

    calls = 0

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        seats: Any = self.environments
        texts = []
        for place, _ in enumerate(prompt_ids):
            self.calls += 1
            answer = str(self.calls)
            if len(prompt_ids) == len(seats) and self.calls % 2:
                answer = seats[place]._play.problem.gold
            reply = json.dumps({"name": "reply", "arguments": {"text": f"\\boxed{{{answer}}}"}})
            texts.append(f"<tool_call>\n{reply}\n</tool_call><|im_end|>")
        return self.processing_class(texts, add_special_tokens=False)["input_ids"], None


# TRL takes back the result of a tool where that would be longer than a completion may be.
LONG: dict[str, Any] = {"max_completion_length": 400, "max_tool_calling_iterations": 4}


def tool_calls() -> None:
    """A role that is asked several times answers by the tool; rewards are those of our rollout."""
    others = "scripted:0.5"
    spec = TRLSpec("eval_opt", "generator", others=others, turns="many", problems=4, seed=1)
    seen = train(spec, Calling, max_steps=1, beta=0.0, **LONG)
    turns, results = [], []
    for row, completion, found in seen:
        said = [
            call["function"]["arguments"]["text"]
            for message in completion
            for call in message.get("tool_calls") or ()
        ]
        told = [message["content"] for message in completion if message["role"] == "tool"]
        assert told
        assert not any("error" in one for one in told)
        # Turns that the model left open, cut off by the length limit, are answered with nothing.
        ours = our_episode(spec, others, row, [*said, *[""] * 9])
        assert ours.returns["generator_0"] == found
        turns.append(sum(call.agent == "generator_0" for call in ours.calls))
        results.append(sum(text.startswith("Review") for text in told))
    assert len({found for *_, found in seen}) > 1
    assert max(turns) > 2
    assert max(results) > 1, "the chat of a third attempt leaves out the first one"


def stops() -> None:
    """A chat that cannot be handed on ends the run; TRL makes no tool result of it."""
    spec = TRLSpec(
        "eval_opt", "generator", others="scripted:0", turns="many", problems=4, preset="paper"
    )
    said = ""
    try:
        train(spec, Calling, max_steps=1, beta=0.0, **LONG)
    except SeatError as error:
        said = str(error)
    assert "was shown a chat (user, assistant, assistant, user)" in said


def pocket(name: str) -> TransformersPolicy:
    """The pocket model of arithmetic as a policy."""
    sampling = Sampling(max_tokens=48)
    return TransformersPolicy.from_pretrained(
        str(pocket_path("math")), name=name, sampling=sampling
    )


def all_roles() -> None:
    """The rollout worker for every role of one policy: rows and advantages are ours."""
    from trl.experimental.async_grpo.async_grpo_trainer import (
        DataCollatorForRollout,
        FixedCountBatcher,
        RolloutQueueDataset,
    )

    workflow, seed, problems, samples = make_workflow("voting"), 5, 3, 4
    for algorithm in ("dr_mas", "grpo"):
        worker = TRLRolloutWorker(
            workflow, pocket("main"), algorithm=algorithm, problems=problems, samples=samples,
            seed=seed, steps=2,
        )  # fmt: skip
        queued = RolloutQueueDataset(
            worker.rollout_buffer,
            lambda: 0,
            worker.check_health,
            60.0,
            _Sink(),
            poll_interval_s=0.2,
        )
        wanted = ours(workflow, algorithm, seed, problems, samples)
        worker.update_model_version(0)
        worker.start()
        rows = iter(queued)
        found = [next(rows) for _ in wanted]
        for row, (call, advantage) in zip(found, wanted, strict=True):
            ids = [*call.prompt_ids, *call.output_ids]
            assert row["input_ids"].tolist() == ids
            assert row["completion_mask"].sum() == len(call.output_ids)
            logps = row["old_log_probs"][-len(call.output_ids) :]
            assert logps.tolist() == [float(_single(logp)) for logp in call.logps]
            assert row["advantage"] == advantage
        assert any(advantage for _, advantage in wanted)
        with contextlib.suppress(RuntimeError):  # there are no further steps
            next(rows)
            raise AssertionError("more rows than were played")
        assert worker.metrics_queue.get_nowait()["rollout/episodes_total"] == problems * samples
        worker.stop()
        batch = DataCollatorForRollout(pad_token_id=0).torch_call(
            [next(iter(FixedCountBatcher(found, 1, len(found))))]
        )
        assert batch["token_index"].numel() == sum(len(call.output_ids) for call, _ in wanted)


class _Sink(dict[str, list[float]]):
    """TRL's metric sink."""

    def __missing__(self, name: str) -> list[float]:
        return self.setdefault(name, [])


def _single(value: float) -> Any:
    import numpy as np

    return np.float32(value)


def ours(workflow: Any, algorithm: str, seed: int, problems: int, samples: int) -> list[Any]:
    """Two steps of our own: every call that was not cut off, with its advantage."""
    policy, stream = pocket("main"), ProblemStream("train", seed)
    policy_map = PolicyMap.shared(policy, workflow.role_counts())
    spec, state, found = algorithm_named(algorithm).advantage, RunningMean(), []
    for step in (1, 2):
        jobs = [
            EpisodeJob(problem, place * samples + sample)
            for place, problem in enumerate(stream.take(workflow.task, problems))
            for sample in range(samples)
        ]
        batch = Rollout(workflow, policy_map, seed=key_int("train", seed, step)).sample(jobs)
        values = compute(batch.rows, spec, episode_returns(batch.records), state).values
        found += [
            (call, value)
            for call, value in zip(batch.rows, values.tolist(), strict=True)
            if call.finish != "length"
        ]
    return found


if __name__ == "__main__":
    for check in (one_role, role_of_several, tool_calls, stops, all_roles):
        start = time.perf_counter()
        check()
        print(check.__name__, f"{time.perf_counter() - start:.1f} s")
