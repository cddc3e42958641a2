"""Two ranks, of which rank 1 is alive and silent, and rank 0 leaves (`test_torchrun.py`).

Words, or `WORDS` as a global: the rank, and the file that the ranks meet at. Rank 0 prints how long
it took to leave, and whether what it sent had arrived.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

os.environ["GLOO_SOCKET_IFNAME"] = "lo"

import torch
from torch import distributed

from flowzoo.baselines.backends import torchrun
from flowzoo.baselines.backends.gangs import Replicas


def main(rank: int, store: str) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(hours=1)
    )
    if rank == 1:
        time.sleep(600)
    backend = torchrun.TorchrunBackend(Replicas())
    sent = distributed.all_reduce(torch.zeros(1), async_op=True)
    torchrun.CLOSE_S = 1.0
    began = time.monotonic()
    backend.close()
    print(f"{time.monotonic() - began:.1f} {sent.is_completed()}", flush=True)  # noqa: T201


if __name__ in ("__main__", "<run_path>"):
    main(*(WORDS if "WORDS" in globals() else (int(sys.argv[1]), sys.argv[2])))  # type: ignore[name-defined]  # noqa: F821
