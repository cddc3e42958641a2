"""When a run saves by the clock."""

from __future__ import annotations

from flowzoo.baselines.run.save_clock import SAVE_S, SAVE_SHARE, SaveClock


def test_a_checkpoint_is_due_after_minutes_and_what_is_slow_to_save_is_saved_rarely() -> None:
    now = 0.0
    clock = SaveClock(lambda: now)
    now = SAVE_S - 1
    assert not clock.due
    now = SAVE_S
    assert clock.due
    with clock.saving():
        now += 60.0
    assert not clock.due
    now += 60.0 / SAVE_SHARE - 1
    assert not clock.due
    now += 1
    assert clock.due
