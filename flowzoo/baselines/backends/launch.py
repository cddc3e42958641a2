"""Starting the ranks of a run on this machine, with torchrun's own launcher.

`flowzoo train … --backend torchrun --ranks N` becomes N processes with the same words. One that
fails ends the others. On several machines torchrun is started by hand; see docs/scale.md.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from flowzoo.errors import FlowzooError

_LOOK_S = 0.1


class RankKilledError(FlowzooError, RuntimeError):
    """A rank was ended by a signal, and said nothing."""


def launch(ranks: int, words: Sequence[str]) -> int:
    """Run `flowzoo` with these words on `ranks` ranks; the status of the first that failed, or 0.

    Each gets its share of this machine's cores, unless OMP_NUM_THREADS says how many.
    """
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=f"flowzoo-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=_LOOK_S,
    )
    for part in ("agent.server.api", "multiprocessing.api"):  # the ranks say what is to be said
        logging.getLogger(f"torch.distributed.elastic.{part}").setLevel(logging.CRITICAL)
    try:
        elastic_launch(config, sys.executable)("-m", "flowzoo.cli", *words)
    except ChildFailedError as failed:
        rank, first = failed.get_first_failure()
        if first.exitcode > 0:
            return first.exitcode
        raise RankKilledError(
            f"rank {rank} was ended by signal {-first.exitcode} (9 may be the system's, for want "
            "of memory): the same command goes on from the last checkpoint"
        ) from failed
    except SignalException as stopped:  # the ranks have ended as they do
        return 128 + int(stopped.sigval)
    return 0
