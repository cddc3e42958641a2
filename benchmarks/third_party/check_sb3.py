"""Stable-Baselines3 and sb3-contrib: three algorithms in seats that are choices."""

from __future__ import annotations

from rows import learned, report

SCRIPTS = ("sb3_ppo", "sb3_dqn", "sb3_maskable")

if __name__ == "__main__":
    report(
        "Stable-Baselines3", ("stable-baselines3", "sb3-contrib", "torch"), map(learned, SCRIPTS)
    )
