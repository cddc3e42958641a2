"""From recorded text to training rows, tokenised as sampling would have.

The prompt is the chat template's, with the opening of the reply; the reply is its text's tokens and
the end of the turn. The loss sees the reply alone, since a row's trained tokens are its
`output_ids`. What cannot have been sampled so is left out and counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowzoo.agents.chat.template import ChatTokenizer, read_thinking, stop_tokens
from flowzoo.agents.policy_map import agent_names, role_of
from flowzoo.baselines.engines.hf import LoadedPolicy
from flowzoo.baselines.settings.policy_map import agent_policies
from flowzoo.baselines.settings.sft import SftConfig, Taught
from flowzoo.baselines.sft.choose import SftCounts, reason_against
from flowzoo.baselines.sft.sources import RecordedReply, SampledLength, Transcript
from flowzoo.envs import Call
from flowzoo.envs.workflow import Roles
from flowzoo.errors import UsageError, unknown

UNNAMED = "unnamed"
"""Role of the replies of chats that name none."""


@dataclass(frozen=True, slots=True)
class RowTokenizer:
    """How one policy reads and ends."""

    chat: ChatTokenizer
    end: int
    """The token that ends a reply."""
    most: int
    """Tokens that a row may have."""

    @classmethod
    def of(cls, model: Any, tokenizer: Any, thinking: bool | None, most: int) -> RowTokenizer:
        """That of a loaded model; `most` 0 stands for its context.

        Raises:
            UsageError: no chat template, no switch for thoughts, or no end of a turn.
        """
        chat = ChatTokenizer(tokenizer, {}, thinking)
        context = getattr(model.config, "max_position_embeddings", None) or 2**62
        end = chat.end_of_turn(stop_tokens(model, tokenizer))
        return cls(chat, end, min(most or context, context))


@dataclass(frozen=True, slots=True)
class RowMaker:
    """Makes the rows of every policy."""

    roles: Roles
    policies: Mapping[str, str]
    """Role or agent -> policy."""
    tokenizers: Mapping[str, RowTokenizer]
    """Of the policies that are trained."""

    def rows(
        self, transcripts: Sequence[Transcript], taught: Taught, counts: SftCounts
    ) -> dict[str, list[Call]]:
        """The rows of each trained policy, in the order of the transcripts, equal ones once.

        Recorded log-probs are 0, so that the gap of the learner's to them is the cross-entropy.

        Raises:
            UsageError: a role or agent that the workflow does not have, or a chat that names none
                where several policies could learn from it.
        """
        found: dict[str, list[Call]] = {name: [] for name in self.tokenizers}
        seen: set[tuple[object, ...]] = set()
        for one in transcripts:
            counts.replies += len(one.replies)
            for reply in one.replies:
                call = self._call(one, reply, taught, counts)
                if call is None:
                    continue
                key = call.policy, call.prompt_ids, call.output_ids
                if key in seen:
                    counts.replies_left_out["equal to another"] += 1
                    continue
                seen.add(key)
                found[call.policy].append(call)
                if reply.length is not None:
                    now = SampledLength(len(call.prompt_ids), len(call.output_ids))
                    counts.compared += 1
                    counts.as_sampled += now == reply.length
        return found

    def _call(
        self, one: Transcript, reply: RecordedReply, taught: Taught, counts: SftCounts
    ) -> Call | None:
        """The row of a reply, or None: the reason is counted."""
        policy, role = self._learner(one, reply)
        reason, ids = reason_against(reply, taught), None
        if policy not in self.tokenizers:
            reason = "of a frozen policy"
        elif not reason:
            own = self.tokenizers[policy]
            prompt = own.chat.encode([reply.messages])[0]
            ids = own.chat.encode_reply(reply.reply)
            if ids is None:
                reason = "not what the tokenizer could have sampled"
            elif len(prompt) + len(ids) + 1 > own.most:
                reason = "longer than max_length or the model's context"
            else:
                return _row(one, reply, role, policy, prompt, (*ids, own.end))
        counts.replies_left_out[reason] += 1
        return None

    def _learner(self, one: Transcript, reply: RecordedReply) -> tuple[str, str]:
        """The policy that a reply is taught to, and the role that it is of."""
        agents = agent_policies(self.policies, self.roles)
        if not reply.agent:
            names = set(agents.values())
            if len(names) > 1:
                raise UsageError(
                    f"{one.episode} names no agent, and the policies {', '.join(sorted(names))} "
                    'could learn from it: add "agent" with a role or agent to its line'
                )
            return names.pop(), next(iter(self.roles)) if len(self.roles) == 1 else UNNAMED
        agent = f"{reply.agent}_0" if reply.agent in self.roles else reply.agent
        if agent not in agents:
            raise unknown(
                f"role or agent in {one.source}", reply.agent,
                [*self.roles, *agent_names(self.roles)],
            )  # fmt: skip
        return agents[agent], role_of(agent)


def _row(
    one: Transcript, reply: RecordedReply, role: str, policy: str,
    prompt: tuple[int, ...], output: tuple[int, ...],
) -> Call:  # fmt: skip
    return Call(
        problem=one.problem, episode=one.episode, agent=reply.agent or role, role=role, slot=0,
        turn=reply.turn, phase=0, messages=(), reply=reply.reply, strict=reply.readable,
        lenient=reply.readable, role_score=reply.role_score, parts={}, reward=0.0, state_hash="",
        prompts="", policy=policy, prompt_ids=prompt, output_ids=output, logps=(0.0,) * len(output),
    )  # fmt: skip


def row_maker(
    config: SftConfig,
    roles: Roles,
    policies: Mapping[str, str],
    trained: Mapping[str, LoadedPolicy],
) -> RowMaker:
    """What makes rows for every policy of `trained` that is not frozen; `policies` by role.

    Raises:
        UsageError: a model has no switch for thoughts, or a template ends no turn.
    """
    switches = read_thinking(config.thinking, trained)
    return RowMaker(
        roles,
        policies,
        {
            name: RowTokenizer.of(
                one.weights.model, one.tokenizer, switches[name], config.max_length
            )
            for name, one in trained.items()
            if not one.frozen
        },
    )
