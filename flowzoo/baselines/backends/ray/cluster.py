"""Getting into a Ray cluster, and getting places in it: every refusal in one line."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch

from flowzoo.baselines.backends.backend import NoRoomError
from flowzoo.errors import UsageError, missing_extra
from flowzoo.provenance import usable_cores

# Before Ray is imported, which reads it once: nobody is told that a cluster was started.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

try:
    import ray
    from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
except ImportError as error:
    raise missing_extra(error.name or "ray", "scale", "`backend` ray") from error

LOCAL = "local"
PLACED_WITHIN_S = 60.0
"""How long places are waited for."""


class _Kind(NamedTuple):
    """Actors that are placed together."""

    strategy: str
    called: str
    settings: str
    """Those that say how many there are, and of what size."""


_KINDS = {
    "rollout": _Kind("SPREAD", "rollout workers", "`rollout_workers` or `rollout_gpus`"),
    "learner": _Kind("PACK", "learner workers", "`learner_workers` or `learner_gpus`"),
    "grader": _Kind("SPREAD", "graders", "`graders`"),
}
_ANSWERS_WITHIN_S = 10.0


def connect(address: str, needed: Mapping[str, float]) -> None:
    """Join the cluster at `address`, or start one on this machine where that is `local`.

    Never any other: a bare `ray.init()` joins whatever cluster it finds on the host.

    Args:
        address: `local`, or HOST:PORT of a cluster's head.
        needed: CPU and GPU that this machine must have where the cluster is of it alone.

    Raises:
        UsageError: there is none, another version of Ray or Python runs there, or this machine has
            too little.
    """
    if ray.is_initialized():
        raise UsageError(
            "this process is in a Ray cluster already, and a run joins its own: call "
            "ray.shutdown() first"
        )
    told: dict[str, Any] = {}
    if address == LOCAL:
        have = {"CPU": usable_cores(), "GPU": torch.cuda.device_count()}
        for kind, amount in needed.items():
            if have[kind] < amount:
                raise UsageError(
                    f"this machine has {have[kind]} {kind}, and the workers need {amount:g}: lower "
                    "`rollout_workers`, `learner_workers` or `graders`, or join a larger cluster "
                    "with --ray-address HOST:PORT"
                )
        told = {"include_dashboard": False, "num_cpus": have["CPU"], "num_gpus": have["GPU"]}
    else:
        look_for(address)
    try:
        ray.init(
            address=address, log_to_driver=False, configure_logging=False,
            logging_level=logging.ERROR, **told,
        )  # fmt: skip
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        raise UsageError(
            f"the Ray cluster {address!r} could not be joined: {' '.join(str(error).split())}. "
            "Start it with the same versions of Ray and Python (`ray start --head`), or give "
            "--ray-address local"
        ) from error


def look_for(address: str) -> None:
    """Refuse an address where nothing answers, before Ray tries for a minute.

    Raises:
        UsageError: as said, or of another form.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or "/" in address:
        raise UsageError(
            f"`ray_address` is `local` or HOST:PORT of the head of a cluster (its own line says "
            f"it: `ray start --head`), got {address!r}"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWERS_WITHIN_S).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"no Ray cluster answers at {address} ({error}): start one with `ray start --head`, "
            "or give --ray-address local"
        ) from error


def place(
    bundles: Sequence[Mapping[str, float]],
    kind: Literal["rollout", "learner", "grader"] = "rollout",
    within: float = PLACED_WITHIN_S,
    of: str = "",
) -> PlacementGroup:
    """A place for every bundle; all of them or none.

    Those that play or grade are spread over the nodes, those that learn are on as few as can be.
    `of` is said after what they are called.

    Raises:
        NoRoomError: the cluster has not had them within the time; says what it has free.
    """
    words = _KINDS[kind]
    group = placement_group([dict(one) for one in bundles], strategy=words.strategy)
    deadline = time.monotonic() + within
    while not group.wait(min(1.0, within)):
        if time.monotonic() >= deadline:
            free, have = ray.available_resources(), ray.cluster_resources()
            nodes = sum(node["Alive"] for node in ray.nodes())
            remove_placement_group(group)
            raise NoRoomError(
                f"{len(bundles)} {words.called}{of} need a bundle of {_words(bundles[0])} each, "
                f"and the cluster had no room for them in {within:.0f} s: it has {_words(free)} "
                f"free of {_words(have)} on {nodes} nodes. Lower {words.settings}, or add nodes"
            )
    return group


def _words(resources: Mapping[str, float]) -> str:
    """`1 CPU, 0 GPU`."""
    return ", ".join(f"{resources.get(kind, 0):g} {kind}" for kind in ("CPU", "GPU"))
