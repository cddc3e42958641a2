"""Any mixture of clients leads to the episodes of patient ones."""

import pytest

pytest.importorskip("openai")

from envs.door.mixture import KINDS, differences, played


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
def test_a_mixture_of_clients_plays_as_patient_ones(seed):
    calm, hasty = played(["patient"], 0, 16), played(list(KINDS), seed, 16)
    assert not any(differences(calm, hasty).values())
    assert sum(record.facts["repeated"] for record in hasty) > 4
