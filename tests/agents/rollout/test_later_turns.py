"""Prompts of later turns begin with the tokens that the same agent sampled before."""

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from flowzoo.agents import PolicyMap, Sampling
from flowzoo.agents.hf.policy import TransformersPolicy
from flowzoo.agents.pocket import pocket_path
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.rollout.tree import TreeRollout, TreeSettings
from flowzoo.envs import Ask, Call, Outcome, Workflow
from flowzoo.envs.api.registry import make_env
from flowzoo.envs.tasks.math import MathTask

TASK = MathTask()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@dataclass(frozen=True)
class Talk(Workflow):
    """A writer is asked three times in one chat, with a reader between."""

    name: ClassVar[str] = "talk_v0"
    roles: ClassVar[dict[str, int]] = {"writer": 1, "reader": 1}

    def play(self, problem):
        chat = [user(f"Write {problem.index}.")]
        for _ in range(3):
            reply = yield Ask("writer_0", chat)
            read = yield Ask("reader_0", [user(reply.text)])
            chat = [*chat, reply.message(), user(read.text)]
        return Outcome(reply.text, 1.0)


@dataclass(frozen=True)
class Edited(Workflow):
    """A writer whose first reply is shortened before its second turn; the third goes on."""

    name: ClassVar[str] = "edited_v0"
    roles: ClassVar[dict[str, int]] = {"writer": 1}

    def play(self, problem):
        first = yield Ask("writer_0", [user("Write.")])
        short = {"role": "assistant", "content": f"I wrote {len(first.text)} letters."}
        chat = [user("Write."), short, user("More.")]
        second = yield Ask("writer_0", chat)
        third = yield Ask("writer_0", [*chat, second.message(), user("More.")])
        return Outcome(third.text, 1.0)


@pytest.fixture(scope="module")
def policy() -> TransformersPolicy:
    """A model that samples bytes at random, so that few replies are how a tokenizer splits them."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(pocket_path("math"))
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).eval()
    return TransformersPolicy(model, tokenizer, sampling=Sampling(max_tokens=12))


def jobs(count: int = 4) -> list[EpisodeJob]:
    return [EpisodeJob(TASK.problem(index)) for index in range(count)]


def body(call: Call) -> tuple[int, ...]:
    return tuple(call.output_ids[: -1 if call.finish == "stop" else None])


def begins_with(later: Call, call: Call, policy: TransformersPolicy) -> bool:
    """Whether a prompt begins with an earlier one and its reply; asserts that it should.

    A reply with a special token in it is not what the template writes of it.
    """
    begin = (*call.prompt_ids, *body(call))
    begins = tuple(later.prompt_ids[: len(begin)]) == begin
    assert begins != bool({*body(call)} & {*policy.tokenizer.added_tokens_decoder})
    return begins


def plain(policy: TransformersPolicy, call: Call) -> tuple[int, ...]:
    """The prompt of a call as the chat template and the tokenizer write it."""
    return tuple(policy.tokenizer.apply_chat_template(
        list(call.messages), add_generation_prompt=True, return_dict=False
    ))  # fmt: skip


def test_a_later_prompt_begins_with_the_sampled_tokens(policy):
    workflow = Talk(task=TASK)
    records = Rollout(workflow, PolicyMap.shared(policy, workflow.roles)).run(jobs())
    split_otherwise = 0
    for record in records:
        first, second, third = (call for call in record.calls if call.role == "writer")
        for later, call in ((second, first), (third, second)):
            kept = begins_with(later, call, policy)
            assert policy.tokenizer.decode(later.prompt_ids) == (
                policy.tokenizer.decode(plain(policy, later))
            )
            split_otherwise += kept and tuple(later.prompt_ids) != plain(policy, later)
        assert all(
            tuple(call.prompt_ids) == plain(policy, call)
            for call in record.calls
            if call.role == "reader"
        )
    assert split_otherwise > 3


def test_an_edited_turn_is_rendered_and_the_later_ones_go_on_from_it(policy):
    workflow, kept = Edited(task=TASK), 0
    for record in Rollout(workflow, PolicyMap.shared(policy, workflow.roles)).run(jobs()):
        first, second, third = record.calls
        assert tuple(second.prompt_ids) == plain(policy, second) != first.prompt_ids
        kept += begins_with(third, second, policy)
    assert kept > 2


def test_candidates_go_on_from_the_reply_that_was_executed(policy):
    workflow = Talk(task=TASK)
    settings = TreeSettings(candidates=2, value="rollout", value_rollouts=1, select="best")
    policies = PolicyMap.shared(policy, workflow.roles)
    batch, kept = TreeRollout(workflow, policies, settings).sample(jobs(2)), 0
    for record in batch.records:
        executed = [call for call in record.calls if call.role == "writer"]
        rows = [row for row in batch.rows if row.episode == record.episode]
        for before, turn in zip(executed, (1, 2), strict=False):
            later = [row for row in rows if row.role == "writer" and row.turn == turn]
            assert len(later) == 2
            kept += sum(begins_with(row, before, policy) for row in later)
    assert kept > 3


def test_an_environment_is_played_with_the_tokens_of_the_script(policy):
    workflow = Talk(task=TASK)
    rollout = Rollout(workflow, PolicyMap.shared(policy, workflow.roles))
    (played,) = rollout.run(jobs(1))
    env = make_env(workflow)
    env.reset(options={"index": 0})
    (driven,) = asyncio.run(rollout.arun_envs([env]))
    ids = [[call.prompt_ids for call in record.calls] for record in (played, driven)]
    assert ids[0] == ids[1]
