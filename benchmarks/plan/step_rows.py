"""Rows of a run's first step, with its prompts and replies of full length."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from flowzoo.agents.chat.prompts import EngineStats, TemplatedPolicy, fitted_prompts
from flowzoo.agents.chat.template import ChatTokenizer
from flowzoo.agents.policy import (
    Batching,
    Completion,
    Request,
    Sampling,
    prompt_budget,
    reply_cap,
)
from flowzoo.agents.problems import ProblemStream
from flowzoo.agents.rollout.episodes import EpisodeJob
from flowzoo.agents.traits import context_of
from flowzoo.baselines.training.factories import make_sampler
from flowzoo.baselines.training.plan import RunPlan
from flowzoo.envs.records import Call
from flowzoo.seeding import key_rng


class FullReplies(TemplatedPolicy):
    """Replies of random tokens, each as long as its request allows."""

    batching: Batching = "static"

    def __init__(self, name: str, chat: ChatTokenizer, sampling: Sampling, context: int) -> None:
        self.name, self.sampling, self._chat, self._context = name, sampling, chat, context
        self.thinking, self.template_id = None, chat.template_id

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Reply to `requests`, in their order."""
        budgets = [prompt_budget(item, self.sampling, self._context) for item in requests]
        prompts = fitted_prompts(self._chat, requests, budgets, EngineStats(), self.name)
        replies: list[Completion] = []
        for request, prompt in zip(requests, prompts, strict=True):
            draw, count = key_rng(*request.key), reply_cap(request, self.sampling)
            ids = [draw.randrange(len(self._chat.tokenizer)) for _ in range(count)]
            text = self._chat.decode(ids, request.tools)
            replies.append(Completion(text, prompt.ids, ids, [0.0] * count))
        return replies

    async def close(self) -> None:
        """No-op."""


def step_rows(
    plan: RunPlan, folders: Mapping[str, str], configs: Mapping[str, Any]
) -> Sequence[Call]:
    """Play the first step of a run; models' folders and configurations are by policy."""
    config = plan.config
    sampling = Sampling(max_tokens=plan.budgets.reply)
    policies: dict[str, FullReplies] = {}
    for name in plan.names:
        tokenizer = AutoTokenizer.from_pretrained(folders[name], trust_remote_code=False)
        context = context_of(configs[name])
        chat = ChatTokenizer(tokenizer)
        policies[name] = FullReplies(name, chat, sampling, context or 2**62)
    workflow = plan.curriculum.at(1)
    problems = ProblemStream(config.split, config.seed).take(workflow.task, config.problems)
    jobs = [EpisodeJob(problem, sample) for problem in problems for sample in range(plan.samples)]
    policy_map = plan.make_policy_map(policies, plan.budgets)
    sampler = make_sampler(
        config, plan.algorithm, workflow, policy_map, seed=config.seed,
        failures=Path(os.devnull),
    )  # fmt: skip
    return sampler.sample(jobs).rows
