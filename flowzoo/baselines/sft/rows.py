"""Training rows from recorded text, tokenized as sampling would have.

The prompt is the chat template's, with the opening of the reply; the reply is its text's tokens and
the end of the turn. Replies that cannot have been sampled so are left out and counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowzoo.agents.chat.template import ChatTokenizer, stop_tokens
from flowzoo.agents.policy_map import agent_names, role_of
from flowzoo.agents.traits import context_of
from flowzoo.baselines.settings.policies import agent_policies
from flowzoo.baselines.settings.sft import Taught
from flowzoo.baselines.sft.choose import SftCounts, reason_against
from flowzoo.baselines.sft.sources import Transcript
from flowzoo.envs import Call
from flowzoo.envs.tools import Tool
from flowzoo.envs.workflow import Roles
from flowzoo.errors import UsageError, unknown

UNNAMED = "unnamed"
"""Role of the replies of chats that name none."""


@dataclass(frozen=True, slots=True)
class RowTokenizer:
    """Tokenizer of the rows of one policy."""

    chat: ChatTokenizer
    stop_ids: frozenset[int]
    end: int
    """The one of `stop_ids` that ends a reply."""
    most: int
    """Most tokens of a row."""

    @classmethod
    def of(cls, model: Any, tokenizer: Any, thinking: bool | None, most: int) -> "RowTokenizer":
        """Make the tokenizer of a loaded model; with `most` 0 its context bounds the rows."""
        chat = ChatTokenizer(tokenizer, thinking)
        context = context_of(model.config) or 2**62
        stop_ids = stop_tokens(model, tokenizer)
        end = chat.end_of_turn(stop_ids)
        return cls(chat, stop_ids, end, min(most or context, context))


@dataclass(frozen=True, slots=True)
class RowMaker:
    """Makes the rows of every policy."""

    roles: Roles
    policies: Mapping[str, str]
    """Policy by role or agent."""
    tokenizers: Mapping[str, RowTokenizer]
    """Tokenizer by policy that is trained."""

    def rows(
        self, transcripts: Sequence[Transcript], taught: Taught, counts: SftCounts
    ) -> dict[str, list[Call]]:
        """Make the rows of each trained policy, in the order of the transcripts, without equals."""
        rows: dict[str, list[Call]] = {name: [] for name in self.tokenizers}
        seen: set[tuple[object, ...]] = set()
        for transcript in transcripts:
            counts.replies += len(transcript.replies)
            for reply in transcript.replies:
                call = self._call(transcript, reply, taught, counts)
                if call is None:
                    continue
                key = call.policy, call.prompt_ids, call.output_ids
                if key in seen:
                    counts.replies_left_out["equal to another"] += 1
                    continue
                seen.add(key)
                rows[call.policy].append(call)
                sampled = reply.prompt_tokens, reply.output_tokens
                if all(sampled):
                    counts.compared += 1
                    counts.as_sampled += sampled == (call.prompt_tokens, call.output_tokens)
        return rows

    def _call(
        self, transcript: Transcript, reply: Call, taught: Taught, counts: SftCounts
    ) -> Call | None:
        policy, role = self._learner(transcript, reply)
        reason = reason_against(reply, taught)
        if policy not in self.tokenizers:
            reason = "of a frozen policy"
        elif reply.tools and self.tokenizers[policy].chat.family != "hermes":
            reason = "of an ask with tools, which this model calls in another notation"
        elif not reason:
            tokenizer = self.tokenizers[policy]
            tools = [Tool.of_schema(schema) for schema in reply.tools]
            row = tokenizer.chat.row(reply.messages, tools, reply.reply, tokenizer.stop_ids)
            if row is None:
                reason = "not what the model's tokenizer and chat template write after the prompt"
            elif len(row.prompt) + len(row.reply) + 1 > tokenizer.most:
                reason = "longer than max_length or the model's context"
            else:
                output = (*row.reply, tokenizer.end)
                # With log-probs of 0 the gap of the learner's to them is the cross-entropy.
                return Call(
                    transcript.problem, transcript.episode, reply.agent or role, role, slot=0,
                    turn=reply.turn, phase=0, messages=(), reply=reply.reply, strict=reply.strict,
                    lenient=reply.strict, role_score=reply.role_score, parts={}, reward=0.0,
                    state_hash="", prompts="", policy=policy, prompt_ids=row.prompt,
                    output_ids=output, logps=(0.0,) * len(output),
                )  # fmt: skip
        counts.replies_left_out[reason] += 1
        return None

    def _learner(self, transcript: Transcript, reply: Call) -> tuple[str, str]:
        """Return the policy that learns a reply, and the role of the reply."""
        agents = agent_policies(self.policies, self.roles)
        if not reply.agent:
            names = set(agents.values())
            if len(names) > 1:
                raise UsageError(
                    f"{transcript.episode} names no agent, and the policies "
                    f"{', '.join(sorted(names))} "
                    'could learn from it: add "agent" with a role or agent to its line'
                )
            return names.pop(), next(iter(self.roles)) if len(self.roles) == 1 else UNNAMED
        agent = f"{reply.agent}_0" if reply.agent in self.roles else reply.agent
        if agent not in agents:
            raise unknown(
                f"role or agent in {transcript.source}", reply.agent,
                [*self.roles, *agent_names(self.roles)],
            )  # fmt: skip
        return agents[agent], role_of(agent)
