"""How often an engine is probed after a sync."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.rules import check, run_rules
from flowzoo.errors import UsageError


@pytest.mark.parametrize(
    ("changes", "distance"),
    [({}, 10), ({"sync_check_every": 3}, 3), ({"max_staleness": 1}, 1), ({"backend": "ray"}, 1),
     ({"backend": "torchrun"}, 1)],
)  # fmt: skip
def test_rows_stand_in_for_probes_only_where_they_prove_something(
    changes: dict[str, Any], distance: int
) -> None:
    config = TrainConfig(engine="vllm", **changes)
    assert config.probe_distance == distance
    check(run_rules(config))
    if distance == 1:
        check(run_rules(replace(config, sync_check_every=1)))
        with pytest.raises(UsageError, match="leaves out probes"):
            check(run_rules(replace(config, sync_check_every=2)))
