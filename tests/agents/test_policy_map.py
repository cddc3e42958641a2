import pytest
from policies import Replies

from flowzoo.agents.policy_map import PolicyMap
from flowzoo.errors import UsageError

ROLES = {"generator": 3, "aggregator": 1}


def echo(name: str) -> Replies:
    return Replies(name=name)


def test_shared_gives_every_role_the_one_policy():
    policy = echo("p")
    policy_map = PolicyMap.shared(policy, ROLES)
    policy_map.check(ROLES)
    assert all(
        policy_map.policy(name) is policy for name in ("generator", "generator_2", "aggregator_0")
    )
    assert policy_map.policies == {"p": policy}


def test_an_agents_entry_wins_over_its_roles():
    first_item, two, three = echo("one"), echo("two"), echo("three")
    policy_map = PolicyMap({"generator": two, "generator_1": first_item, "aggregator": three})
    policy_map.check(ROLES)
    results = [policy_map.policy(f"generator_{slot}").name for slot in range(3)]
    assert results == ["two", "one", "two"]
    assert list(policy_map.policies) == ["one", "three", "two"]
    assert policy_map.entries == {"generator": "two", "generator_1": "one", "aggregator": "three"}


def test_agents_alone_can_cover_a_role():
    policy = echo("p")
    policy_map = PolicyMap(
        {f"generator_{slot}": policy for slot in range(3)} | {"aggregator": policy}
    )
    policy_map.check(ROLES)
    partly = PolicyMap({"generator_0": policy, "generator_2": policy, "aggregator": policy})
    with pytest.raises(UsageError, match=r"no policy for role generator \(generator_1\)"):
        partly.check(ROLES)


def test_a_missing_role_is_named_with_the_valid_ones():
    policy_map = PolicyMap({"generator": echo("p")})
    with pytest.raises(UsageError, match=r"aggregator .*roles are generator, aggregator"):
        policy_map.check(ROLES)
    with pytest.raises(UsageError, match="unknown role or agent 'aggregator_0'"):
        policy_map.policy("aggregator_0")


def test_an_unknown_role_gets_near_matches():
    policy_map = PolicyMap({"generater": echo("p"), "aggregator": echo("q")})
    with pytest.raises(UsageError, match="Did you mean 'generator'"):
        policy_map.check(ROLES)
    with pytest.raises(UsageError, match="unknown role or agent 'generator_3'"):
        PolicyMap.shared(echo("p"), [*ROLES, "generator_3"]).check(ROLES)


def test_from_map_takes_names_and_explains_unknown_ones():
    policies = {"big": echo("big"), "small": echo("small"), "spare": echo("spare")}
    policy_map = PolicyMap.from_map({"generator": "small", "aggregator": "big"}, policies)
    assert policy_map.policy("generator_1") is policies["small"]
    assert list(policy_map.policies) == ["big", "small"]
    with pytest.raises(UsageError, match=r"unknown policy 'smal'. Did you mean 'small'"):
        PolicyMap.from_map({"generator": "smal"}, policies)


def test_wrong_entries_are_refused():
    with pytest.raises(UsageError, match="two different policies are named 'p'"):
        PolicyMap({"generator": echo("p"), "aggregator": echo("p")})
    with pytest.raises(UsageError, match="at least one entry"):
        PolicyMap({})
    with pytest.raises(UsageError, match=r"must be a policy .*got str"):
        PolicyMap({"generator": "p"})  # type: ignore[dict-item]


def test_a_judge_is_apart_from_a_role_that_is_named_so():
    policy, judge = echo("p"), echo("j")
    roles = {"judge": 1, "solver": 1}
    plain = PolicyMap({"solver": policy, "judge": policy})
    plain.check(roles)
    assert (plain.judge, plain.policy("judge_0")) == (None, policy)
    judged = PolicyMap({"solver": policy}).with_judge(judge)
    judged.check({"solver": 1}, judge=True)
    assert (judged.policy("judge"), judged.entries) == (judge, {"solver": "p"})
    assert judged.with_policies({"p": policy, "j": judge}).judge is judge
    with pytest.raises(UsageError, match="asks a judge, and no policy is one"):
        plain.check(roles, judge=True)
