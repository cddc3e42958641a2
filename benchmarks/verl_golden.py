"""Corrections for the sampler as verl computes them on given log-probs: numbers of a test of ours.

    python -m venv .venv-verl && .venv-verl/bin/pip install verl==0.9.1
    .venv-verl/bin/python benchmarks/verl_golden.py tests/baselines/learner/verl_corrections.json

It runs in the environment of verl and knows nothing of this project. Written down are log-probs of
learner and sampler for rows of unequal lengths, the importance weights at each level, the replies
that a bound on the geometric mean keeps, and the divergences.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import verl
from verl.trainer.ppo.rollout_corr_helper import (
    compute_offpolicy_metrics,
    compute_rollout_correction_weights,
    compute_rollout_rejection_mask,
)

LENGTHS = (5, 1, 3, 8, 2, 6)
WEIGHTS = {
    f"{level} {mode}": {"rollout_is": level, "rollout_is_threshold": threshold}
    for level in ("token", "sequence")
    for mode, threshold in (("truncate", "1.3"), ("mask", "0.75_1.3"))
}
GEOMETRIC = (0.85, 1 / 0.85)
METRICS = ("chi2_token", "chi2_seq", "log_ppl_diff", "log_ppl_abs_diff")


def rows_of(values: torch.Tensor) -> list[list[float]]:
    """The values of each row's tokens."""
    return [line[:length].tolist() for line, length in zip(values, LENGTHS, strict=True)]


def main() -> None:
    """Write the file that is named."""
    generator = torch.Generator().manual_seed(0)
    shape = (len(LENGTHS), max(LENGTHS))
    mask = (torch.arange(shape[1])[None] < torch.tensor(LENGTHS)[:, None]).float()
    sampler = -3 * torch.rand(shape, generator=generator) - 0.5
    learner = sampler + 0.4 * torch.randn(shape, generator=generator)
    sampler, learner = sampler * mask, learner * mask
    weights = {
        name: rows_of(compute_rollout_correction_weights(learner - sampler, mask, **case)[0])
        for name, case in WEIGHTS.items()
    }
    bounds = "_".join(str(bound) for bound in GEOMETRIC)
    kept, _ = compute_rollout_rejection_mask(learner - sampler, mask, "seq_mean_k1", bounds)
    metrics = compute_offpolicy_metrics(learner, sampler, mask)
    result: dict[str, Any] = {
        "verl": verl.__version__, "sampler": rows_of(sampler), "learner": rows_of(learner),
        "weights": weights, "geometric": rows_of(kept),
        "metrics": {name: metrics[name] for name in METRICS},
    }  # fmt: skip
    print(result["geometric"], result["metrics"])
    Path(sys.argv[1]).write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
