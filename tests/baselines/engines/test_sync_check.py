"""Allowed differences of engine and learner after a sync; the syncs are in test_vllm_training."""

import math

import pytest

from flowzoo.baselines.backends.sync_check import LogprobGap, SyncError, check

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
