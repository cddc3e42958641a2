"""Held-out losses of a warm start, and when they end it."""

from __future__ import annotations

from collections.abc import Sequence

from flowzoo.baselines.metrics import MetricRow


def rise_of_losses(rows: Sequence[MetricRow], patience: int) -> str:
    """Why a run ends after `rows`: its held-out loss no longer falls. Nothing: it goes on."""
    losses = held_out_losses(rows)
    if not patience or not losses:
        return ""
    least = min(losses, key=losses.__getitem__)
    waited = sum(step > least for step in losses)
    if waited < patience:
        return ""
    return (
        f"no held-out loss of the {waited} epochs since step {least} was below its "
        f"{losses[least]:.3f} (stop_patience {patience})"
    )


def held_out_losses(rows: Sequence[MetricRow]) -> dict[int, float]:
    """Step -> mean held-out loss, nats a token, of the steps that were measured."""
    return {row["step"]: row["eval/loss/mean"] for row in rows if "eval/loss/mean" in row}
