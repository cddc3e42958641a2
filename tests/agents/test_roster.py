from __future__ import annotations

from collections.abc import Sequence

import pytest

from flowzoo.agents.policy import Batching, Completion, Request
from flowzoo.agents.roster import Roster
from flowzoo.errors import UsageError

ROLES = {"generator": 3, "aggregator": 1}


class Echo:
    batching: Batching = "stream"

    def __init__(self, name: str) -> None:
        self.name = name

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [Completion(self.name) for _ in requests]

    async def close(self) -> None:
        return None


def test_shared_gives_every_role_the_one_policy() -> None:
    policy = Echo("p")
    roster = Roster.shared(policy, ROLES)
    roster.check(ROLES)
    assert all(
        roster.policy(name) is policy for name in ("generator", "generator_2", "aggregator_0")
    )
    assert roster.policies == {"p": policy}


def test_an_agents_entry_wins_over_its_roles() -> None:
    one, two, three = Echo("one"), Echo("two"), Echo("three")
    roster = Roster({"generator": two, "generator_1": one, "aggregator": three})
    roster.check(ROLES)
    found = [roster.policy(f"generator_{slot}").name for slot in range(3)]
    assert found == ["two", "one", "two"]
    assert list(roster.policies) == ["one", "three", "two"]
    assert roster.entries == {"generator": "two", "generator_1": "one", "aggregator": "three"}


def test_agents_alone_can_cover_a_role() -> None:
    policy = Echo("p")
    roster = Roster({f"generator_{slot}": policy for slot in range(3)} | {"aggregator": policy})
    roster.check(ROLES)
    partly = Roster({"generator_0": policy, "generator_2": policy, "aggregator": policy})
    with pytest.raises(UsageError, match=r"no policy for role generator \(generator_1\)"):
        partly.check(ROLES)


def test_a_missing_role_is_named_with_the_valid_ones() -> None:
    roster = Roster({"generator": Echo("p")})
    with pytest.raises(UsageError, match=r"aggregator .*roles are generator, aggregator"):
        roster.check(ROLES)
    with pytest.raises(UsageError, match="unknown role or agent 'aggregator_0'"):
        roster.policy("aggregator_0")


def test_an_unknown_role_gets_near_matches() -> None:
    roster = Roster({"generater": Echo("p"), "aggregator": Echo("q")})
    with pytest.raises(UsageError, match="Did you mean 'generator'"):
        roster.check(ROLES)
    with pytest.raises(UsageError, match="unknown role or agent 'generator_3'"):
        Roster.shared(Echo("p"), [*ROLES, "generator_3"]).check(ROLES)


def test_from_map_takes_names_and_explains_unknown_ones() -> None:
    policies = {"big": Echo("big"), "small": Echo("small"), "spare": Echo("spare")}
    roster = Roster.from_map({"generator": "small", "aggregator": "big"}, policies)
    assert roster.policy("generator_1") is policies["small"]
    assert list(roster.policies) == ["big", "small"]
    with pytest.raises(UsageError, match=r"unknown policy 'smal'. Did you mean 'small'"):
        Roster.from_map({"generator": "smal"}, policies)


def test_wrong_entries_are_refused() -> None:
    with pytest.raises(UsageError, match="two different policies are named 'p'"):
        Roster({"generator": Echo("p"), "aggregator": Echo("p")})
    with pytest.raises(UsageError, match="at least one entry"):
        Roster({})
    with pytest.raises(UsageError, match=r"must be a policy .*got str"):
        Roster({"generator": "p"})  # type: ignore[dict-item]
