"""Held-out losses of a warm start, and when they end it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.training.metrics import MetricRow
from flowzoo.envs import Call


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


def measure_losses(
    learners: Mapping[str, Learner], held_out: Mapping[str, Sequence[Call]]
) -> MetricRow:
    """`eval/loss/ROLE`, `eval/loss/mean`: cross-entropy of the held-out replies' tokens."""
    sums: dict[str, list[float]] = {}
    for name, learner in learners.items():
        calls = held_out[name]
        for role in sorted({call.role for call in calls}):
            gaps = learner.gaps([call for call in calls if call.role == role]).double()
            one = sums.setdefault(role, [0.0, 0.0])
            one[0] += float(gaps.sum())
            one[1] += gaps.numel()
    if not sums:
        return {}
    total, tokens = (sum(one[part] for one in sums.values()) for part in (0, 1))
    by_role = {f"eval/loss/{role}": one[0] / one[1] for role, one in sums.items()}
    return by_role | {"eval/loss/mean": total / tokens}
