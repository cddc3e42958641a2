"""Kill rollout workers of a run at random moments: does it come to what one process comes to?

    python benchmarks/ray_kills.py [--kills 20] [--seed 0] [--max-staleness K] [--out FOLDER]

Two nodes on this machine, two workers, the pocket model at its smallest size. One after another,
each a seeded time after the last, a worker is killed with SIGKILL: while it plays, loads weights,
starts, or waits. Metrics, transcripts (every token and log-probability of the rows) and weights
must then be those of `--backend local` with the same shards, bit for bit, or with
`--max-staleness`, which `local` refuses here, those of a single worker that is not killed. Exit
status 1 if they are not, or if the run was over before the last kill.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness.runs import digests, metrics
from ray_cluster import NODE, Killer, be_apart, cluster_of, meanwhile

WORKERS = 2
SETTINGS: dict[str, Any] = {
    "workflow": "voting", "model": "pocket:xs", "problems": 4, "samples": 4, "shard_jobs": 2,
    "eval_problems": 4, "eval_every": 5, "checkpoint_every": 5, "transcripts_every": 1,
    "threads": 1, "microbatch_tokens": 1000, "max_tokens": 24,
}  # fmt: skip
WITHIN_S = 3.0
"""A worker is killed at most so long after the one before."""


def main() -> None:
    """Train twice, and compare."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--kills", type=int, default=20)
    options.add_argument("--seed", type=int, default=0, help="of the moments and of the workers")
    options.add_argument("--max-staleness", type=int, default=0)
    options.add_argument("--out", type=Path, help="keeps the two runs")
    given = options.parse_args()
    be_apart()
    out: Path = given.out or Path(tempfile.mkdtemp(prefix="kills-"))
    killer = Killer(given.kills, given.seed, WITHIN_S)
    with cluster_of(NODE, NODE) as cluster:
        from flowzoo.baselines.settings.config import TrainConfig
        from flowzoo.baselines.training.build import start_run
        from flowzoo.baselines.training.trainer import Trainer

        steps = given.kills + 2
        settings = {**SETTINGS, "steps": steps, "max_staleness": given.max_staleness}
        there: dict[str, Any] = {"backend": "ray", "ray_address": cluster.address}
        began = time.monotonic()
        config = TrainConfig(**settings, **there, rollout_workers=WORKERS, out=str(out / "ray"))
        trainer = Trainer(start_run(config))
        with meanwhile(killer):
            trainer.train()
        took = time.monotonic() - began
        there = {**there, "rollout_workers": 1} if given.max_staleness else {}
        Trainer(start_run(TrainConfig(**settings, **there, out=str(out / "calm")))).train()
    print("kill  process  doing")
    for number, kill in enumerate(killer.done, 1):
        print(f"{number:4d} {kill.pid:8d}  {kill.doing or 'waits'}")
    mine, theirs = metrics(out / "ray"), metrics(out / "calm")
    written = digests(out / "ray"), digests(out / "calm")
    equal = mine == theirs, written[0] == written[1]
    words = ("differ", "equal, bit for bit")
    print(f"{len(killer.done)} kills in {steps} steps and {took:.0f} s")
    print(f"metrics of {len(theirs)} rows: {words[equal[0]]}")
    print(f"{len(written[1])} files of transcripts and weights: {words[equal[1]]}")
    sys.exit(not (all(equal) and len(killer.done) == given.kills))


if __name__ == "__main__":
    main()
