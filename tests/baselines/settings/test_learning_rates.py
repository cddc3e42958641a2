"""Learning rates of policies and roles, and weights that do nothing."""

from typing import Any

import pytest

from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.policy_map import idle_weights, policy_rates, read_policy_map
from flowzoo.errors import UsageError
from tests.refused import refused

ROLES = {"generator": 3, "aggregator": 1}


def rates(*sharing: str, **settings: Any) -> dict[str, tuple[float, dict[str, float]]]:
    config = TrainConfig(**{"lr": 1e-3, **settings})
    found = policy_rates(config, read_policy_map(sharing, ROLES), ROLES)
    return {name: (one.lr, dict(one.roles)) for name, one in found.items()}


def test_a_role_alone_in_its_policy_gives_it_its_rate():
    assert rates("isolated", role_lr=("generator=1e-4",)) == {
        "generator": (1e-4, {}),
        "aggregator": (1e-3, {}),
    }
    assert rates("isolated", lr=("1e-3", "aggregator=0.5"))["aggregator"] == (0.5, {})
    mine = ("generator_0=a", "generator_1=b", "generator_2=b", "aggregator=judge")
    found = rates(*mine, role_lr=("generator=2e-4",), lr=("1e-3", "judge=3e-4"))
    assert found == {"a": (2e-4, {}), "b": (2e-4, {}), "judge": (3e-4, {})}
    assert set(rates("isolated", frozen=("generator",))) == {"aggregator"}


def test_within_a_policy_of_several_roles_sgd_alone_knows_rates():
    one = {"role_lr": ("generator=1e-4",), "lr": ("shared=2e-3",)}
    assert rates("shared", optimizer="sgd", **one) == {"shared": (2e-3, {"generator": 1e-4})}
    for name in ("adamw", "adafactor"):
        with pytest.raises(UsageError, match=f"is for sgd.*; {name} takes one step for all"):
            rates("shared", optimizer=name, **one)


@pytest.mark.parametrize(("settings", "message"), refused(__file__, "learning_rates"))
def test_mistakes_are_named(settings, message):
    with pytest.raises(UsageError, match=message):
        rates("isolated", **settings)


def test_the_weight_of_a_policys_only_role_is_told_of_where_it_does_nothing():
    def said(*sharing, **settings):
        return idle_weights(TrainConfig(**settings), read_policy_map(sharing, ROLES), ROLES)

    third = {"role_weights": ("generator=0.333",)}
    (line,) = said("isolated", **third)
    assert line.startswith("generator: role_weights generator=0.333 does next to nothing")
    assert "steps of adamw" in line
    assert "role_lr" in line
    assert said("shared", **third) == []
    assert said("isolated", **third, optimizer="sgd", lr=0.1) == []
    assert said("isolated", role_weights=("generator=0", "aggregator=1")) == [], "0 is no scale"
