"""Allowed differences of engine and learner after a sync; the syncs are in test_vllm_training."""

import math

import pytest

from flowzoo.baselines.backends.sync_check import (
    LogprobGap,
    LogprobGapError,
    SyncError,
    check,
    check_bound,
)
from flowzoo.baselines.settings.config import TrainConfig

ENGINE = "the engine of policy 'shared'"


@pytest.mark.parametrize(
    ("gap", "exact", "tolerance"),
    [
        (LogprobGap(9e-4, 1e-4, 96), True, 0.0),
        (LogprobGap(0.14, 0.019, 96), False, 0.0),  # as measured with both in bfloat16
        (LogprobGap(0.5, 0.09, 96), False, 0.1),
    ],
)
def test_rounding_passes(gap, exact, tolerance):
    check(gap, ENGINE, exact=exact, tolerance=tolerance)


@pytest.mark.parametrize(
    ("gap", "exact", "tolerance", "allowed"),
    [
        (LogprobGap(2e-3, 1e-5, 96), True, 0.0, "0.001 at most"),
        (LogprobGap(0.34, 0.16, 96), False, 0.0, "0.15 in the mean"),
        (LogprobGap(2e-3, 1e-3, 96), False, 1e-4, "0.0001 in the mean"),
        (LogprobGap(math.nan, math.nan, 96), False, 0.0, "0.15 in the mean"),
    ],
)
def test_other_weights_do_not(gap, exact, tolerance, allowed):
    with pytest.raises(SyncError, match=f"'shared' does not have .* and {allowed} is allowed"):
        check(gap, ENGINE, exact=exact, tolerance=tolerance)


@pytest.mark.parametrize(
    ("settings", "remedies"),
    [
        (
            {"engine_dtype": "bfloat16"},
            "set engine_dtype=float32 in place of bfloat16 or old_logp=recomputed, .*, or cont",
        ),
        (
            {"engine_dtype": "float32", "old_logp": "recomputed", "max_staleness": 2},
            "set max_staleness below 2, or continue",
        ),
        ({"engine_dtype": "float32", "old_logp": "recomputed"}, "allows 0.1: continue from the"),
    ],
)
def test_rows_beyond_the_bound_end_the_run_with_what_to_change(settings, remedies):
    gaps = {"a": LogprobGap(3.0, 0.1, 96), "b": LogprobGap(0.5, 0.2, 7)}
    config = TrainConfig(max_logp_gap=0.1, **settings)
    message = rf"^step 3: .* 0.2 nats a token .* 7 trained tokens of policy 'b' .*{remedies}"
    with pytest.raises(LogprobGapError, match=message):
        check_bound(gaps, 3, config)
    for bound in (0.0, 0.2):
        check_bound(gaps, 3, TrainConfig(max_logp_gap=bound))
