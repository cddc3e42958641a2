"""The mapping from roles, or single agents, to policies and token budgets.

Budgets are given as `ROLE=PROMPT/REPLY`; either number may be left out (`aggregator=15360/5120`,
`generator=/512`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from flowzoo.agents.policy import Policy
from flowzoo.declared import check_declared
from flowzoo.envs.script import JUDGE
from flowzoo.envs.workflow import Roles, agents_of
from flowzoo.errors import UsageError, unknown


def role_of(agent: str) -> str:
    """The role of an agent name: `generator_2` -> `generator`; a role stays itself."""
    role, cut, number = agent.rpartition("_")
    return role if cut and number.isdigit() else agent


def agent_names(roles: Roles) -> list[str]:
    """Every agent of a workflow with these `roles`."""
    return [agent for role, agents in roles.items() for agent in agents_of(role, agents)]


_LENGTHS = re.compile(r"(?P<role>\w+)=(?P<prompt>\d*)(?:/(?P<reply>\d*))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Budgets of one role, in tokens; None leaves the policy's own."""

    prompt: Annotated[int, Ge(1)] | None = None
    """Most tokens of a prompt; a longer one is shortened (`flowzoo.agents.chat.prompts`)."""
    reply: Annotated[int, Ge(1)] | None = None
    """Most tokens of a reply."""

    def __post_init__(self) -> None:
        check_declared(self, "the {} budget of a role".format)


def read_lengths(args: Sequence[str], roles: Roles) -> dict[str, Lengths]:
    """Read `ROLE=PROMPT/REPLY` words.

    Args:
        args: e.g. `("generator=30720/5120", "aggregator=/512")`.
        roles: the workflow's, role -> its agents; entries name roles or agents.
    """
    agents = agent_names(roles)
    lengths: dict[str, Lengths] = {}
    for word in args:
        match = _LENGTHS.fullmatch(word)
        if match is None or not (match["prompt"] or match["reply"]):
            raise UsageError(
                f"lengths are given as ROLE=PROMPT/REPLY, e.g. generator=4096/512 or "
                f"generator=/512, got {word!r}"
            )
        role, *numbers = match.groups()
        if role not in roles and role not in agents:
            raise unknown("role", role, [*roles, *agents])
        if role in lengths:
            raise UsageError(f"lengths give {role!r} twice")
        lengths[role] = Lengths(*(int(number) if number else None for number in numbers))
    return lengths


def with_default(
    lengths: Mapping[str, Lengths], roles: Roles, reply: int
) -> tuple[dict[str, Lengths], int]:
    """`lengths` with a reply budget in every role, and the longest."""
    # A policy has one limit for all roles that it plays, and a request can only tighten it: the
    # policy's must be the longest.
    full = {role: lengths.get(role, Lengths()) for role in roles}
    full = {role: Lengths(entry.prompt, entry.reply or reply) for role, entry in full.items()}
    for agent, entry in lengths.items():
        if agent not in roles:
            role = full[role_of(agent)]
            full[agent] = Lengths(entry.prompt or role.prompt, entry.reply or role.reply)
    return full, max(entry.reply or reply for entry in full.values())


_NO_LENGTHS = Lengths()


class PolicyMap:
    """Role or agent -> policy. An entry for an agent wins over the entry of its role."""

    def __init__(
        self,
        entries: Mapping[str, Policy],
        lengths: Mapping[str, Lengths] | None = None,
        judge: Policy | None = None,
    ) -> None:
        """Keep `entries`, whose keys are roles (`generator`) or agents (`generator_0`).

        Args:
            entries: role or agent -> policy.
            lengths: role or agent -> token budgets, where they are tighter than the policy's.
            judge: answers the workflow's questions to a judge; it is no agent's policy.

        Raises:
            UsageError: no entries, or two different policies under one name.
        """
        if not entries:
            raise UsageError("a policy map needs at least one entry: role or agent -> policy.")
        self._entries, self.judge = dict(entries), judge
        self._lengths = dict(lengths or {})
        self._policies: dict[str, Policy] = {}
        named = dict(entries) if judge is None else {**entries, JUDGE: judge}
        for key, policy in named.items():
            if not isinstance(policy, Policy):
                raise UsageError(
                    f"policy map entry {key!r} must be a policy (name, batching, generate, close), "
                    f"got {type(policy).__name__}; names of policies go through PolicyMap.from_map."
                )
            if self._policies.setdefault(policy.name, policy) is not policy:
                raise UsageError(
                    f"two different policies are named {policy.name!r}; give each its own name."
                )

    @classmethod
    def shared(cls, policy: Policy, roles: Iterable[str]) -> "PolicyMap":
        """One policy for every role in `roles` (a workflow's `roles` will do)."""
        return cls(dict.fromkeys(roles, policy))

    @classmethod
    def from_map(
        cls,
        mapping: Mapping[str, str],
        policies: Mapping[str, Policy],
        lengths: Mapping[str, Lengths] | None = None,
    ) -> "PolicyMap":
        """A policy map from role or agent -> name of a policy, and the policies by name.

        Raises:
            UsageError: a name that is not in `policies`.
        """
        for name in mapping.values():
            if name not in policies:
                raise unknown("policy", name, policies)
        return cls({key: policies[name] for key, name in mapping.items()}, lengths)

    def with_judge(self, policy: Policy) -> "PolicyMap":
        """This map with `policy` as the judge that workflows ask."""
        return PolicyMap(self._entries, self._lengths, policy)

    @property
    def policies(self) -> dict[str, Policy]:
        """The distinct policies by name, sorted."""
        return dict(sorted(self._policies.items()))

    @property
    def entries(self) -> dict[str, str]:
        """Role or agent -> name of its policy."""
        return {key: policy.name for key, policy in self._entries.items()}

    def policy(self, name: str) -> Policy:
        """The policy of an agent or a role, or of the judge.

        Raises:
            UsageError: neither the agent nor its role has an entry.
        """
        policy = self._entries.get(name) or self._entries.get(role_of(name))
        if policy is None and name == JUDGE:
            policy = self.judge
        if policy is None:
            raise unknown("role or agent", name, self._entries)
        return policy

    def lengths(self, agent: str) -> Lengths:
        """The token budgets of an agent: its own, else its role's, else none."""
        return self._lengths.get(agent) or self._lengths.get(role_of(agent)) or _NO_LENGTHS

    def with_policies(self, policies: Mapping[str, Policy]) -> "PolicyMap":
        """Return this mapping and its budgets with other policies under the same names."""
        entries = {key: policies[name] for key, name in self.entries.items()}
        judge = None if self.judge is None else policies[self.judge.name]
        return PolicyMap(entries, self._lengths, judge)

    def check(self, roles: Roles, judge: bool = False) -> None:
        """Compare the policy map with a workflow's `roles` (role -> its agents).

        With `judge` the workflow asks one.

        Raises:
            UsageError: an entry that is no role and no agent of the workflow, an agent that no
                entry covers, or a token budget that its policy cannot keep.
        """
        agents = agent_names(roles)
        names = {*roles, *agents, *([JUDGE] if judge else ())}
        if judge and self.judge is None:
            raise UsageError(
                "the workflow asks a judge, and no policy is one: add --policy judge=POLICY (in a "
                "run --judge POLICY), policy_map.with_judge(policy), or env(judge=FUNCTION)"
            )
        for key in (*self._entries, *self._lengths):
            if key not in names:
                raise unknown("role or agent", key, [*roles, *agents])
        uncovered = [each for each in agents if not {each, role_of(each)} & self._entries.keys()]
        if uncovered:
            missing = sorted({role_of(agent) for agent in uncovered})
            raise UsageError(
                f"no policy for role {', '.join(missing)} ({', '.join(uncovered)}). The policy map "
                f"has {', '.join(sorted(self._entries))}; the workflow's roles are "
                f"{', '.join(roles)}."
            )
        for name in self._lengths:
            for agent in agents:
                if name in (agent, role_of(agent)):
                    self._check_lengths(name, self.policy(agent))

    def _check_lengths(self, name: str, policy: Policy) -> None:
        lengths = self._lengths[name]
        if lengths.prompt is not None and not getattr(policy, "counts_tokens", True):
            raise UsageError(
                f"the prompt budget of {name} has no effect: policy {policy.name!r} sends text and "
                "cannot count tokens. Leave it out, or use vllm:PATH@URL."
            )
        sampling = getattr(policy, "sampling", None)
        if sampling is not None and (lengths.reply or 0) > sampling.max_tokens:
            raise UsageError(
                f"the reply budget of {name}, {lengths.reply}, is above the {sampling.max_tokens} "
                f"tokens that policy {policy.name!r} may write: raise its max_tokens."
            )

    def __repr__(self) -> str:
        return f"PolicyMap({', '.join(f'{key}={name}' for key, name in self.entries.items())})"
