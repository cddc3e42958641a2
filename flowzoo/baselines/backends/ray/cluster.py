"""Joining a Ray cluster and reserving resources in it, with one-line errors."""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch

from flowzoo.baselines.backends.backend import NoRoomError, deserialize_error
from flowzoo.baselines.backends.ray.worker import Failed
from flowzoo.errors import FlowzooError, UsageError, missing_extra
from flowzoo.provenance import usable_cores
from flowzoo.waits import WaitKind

# Ray reads this once, at import: no usage report of the cluster is sent.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

try:
    import ray
    from ray.exceptions import ActorDiedError, RayError, RayTaskError
    from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:
    raise missing_extra(error.name or "ray", "scale", "`backend` ray") from error

LOCAL = "local"
ActorKind = Literal["rollout", "learner", "grader"]
PLACED_WITHIN_S = 60.0  # time limit for a placement group, in seconds


class _Kind(NamedTuple):
    """A kind of actors that are placed together."""

    strategy: str
    called: str
    settings: str  # settings of their number and size


_KINDS: Mapping[ActorKind, _Kind] = {
    "rollout": _Kind("SPREAD", "rollout workers", "`rollout_workers` or `rollout_gpus`"),
    "learner": _Kind("PACK", "learner workers", "`learner_workers` or `learner_gpus`"),
    "grader": _Kind("SPREAD", "graders", "`graders`"),
}
_ANSWERS_WITHIN_S = 10.0


def connect(address: str, needed: Mapping[str, float]) -> None:
    """Join the cluster at `address`, or start one on this machine where that is `local`."""
    # Never any other: a bare `ray.init()` joins any cluster that it finds on the host.
    if ray.is_initialized():
        raise UsageError(
            "this process is in a Ray cluster already, and a run joins its own: call "
            "ray.shutdown() first"
        )
    options: dict[str, Any] = {}
    if address == LOCAL:
        have = {"CPU": usable_cores(), "GPU": torch.cuda.device_count()}
        for kind, amount in needed.items():
            if have[kind] < amount:
                raise UsageError(
                    f"this machine has {have[kind]} {kind}, and the workers need {amount:g}: lower "
                    "`rollout_workers`, `learner_workers` or `graders`, or join a larger cluster "
                    "with --ray-address HOST:PORT"
                )
        options = {"include_dashboard": False, "num_cpus": have["CPU"], "num_gpus": have["GPU"]}
    else:
        _look_for(address)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(
            address=address, log_to_driver=False, configure_logging=False,
            logging_level=logging.ERROR, **options,
        )  # fmt: skip
    except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
        raise UsageError(
            f"the Ray cluster {address!r} could not be joined: {' '.join(str(error).split())}. "
            "Start it with the same versions of Ray and Python (`ray start --head`), or give "
            "--ray-address local"
        ) from error
    # Ray ends the process at SIGTERM, but a run says what is kept and how it goes on.
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _look_for(address: str) -> None:
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
    kind: ActorKind = "rollout",
    within: float = PLACED_WITHIN_S,
    of: str = "",
) -> PlacementGroup:
    """A place for every bundle, all of them or none; raises `NoRoomError`."""
    # Rollout workers and graders are spread over the nodes, learner workers packed on few.
    labels = _KINDS[kind]
    group = placement_group([dict(bundle) for bundle in bundles], strategy=labels.strategy)
    deadline = time.monotonic() + within
    while not group.wait(min(1.0, within)):
        if time.monotonic() >= deadline:
            free, have = ray.available_resources(), ray.cluster_resources()
            nodes = sum(node["Alive"] for node in ray.nodes())
            remove_placement_group(group)
            raise NoRoomError(
                f"{len(bundles)} {labels.called}{of} need a bundle of {_words(bundles[0])} each, "
                f"and the cluster had no room for them in {within:.0f} s: it has {_words(free)} "
                f"free of {_words(have)} on {nodes} nodes. Lower {labels.settings}, or add nodes"
            )
    return group


def start_actors(
    kind: ActorKind, worker: type, given: Sequence[tuple[Any, ...]], *,
    cores: int, gpus: float = 0.0, restarts: int = -1, names: Sequence[str] = (), of: str = "",
) -> tuple[list[Any], PlacementGroup]:  # fmt: skip
    """An actor for each of the arguments `given`, one to a bundle of a placement group."""
    bundle = {"CPU": float(cores), **({"GPU": gpus} if gpus else {})}
    group = place([bundle] * len(given), kind, of=of)
    actor = ray.remote(worker)
    actors = [
        actor.options(
            num_cpus=cores,
            num_gpus=gpus,
            max_restarts=restarts,
            max_task_retries=0,  # see `pool`
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, number),
            **({"name": names[number]} if names else {}),
        ).remote(*arguments)
        for number, arguments in enumerate(given)
    ]
    return actors, group


def _words(resources: Mapping[str, float]) -> str:
    # `1 CPU, 0 GPU`
    return ", ".join(f"{resources.get(kind, 0):g} {kind}" for kind in ("CPU", "GPU"))


STARTED_WITHIN_S = 600.0  # time limit for an actor to start and load, in seconds
BACK_WITHIN_S = 300.0  # time limit for the return of lost actors, in seconds
PAUSE_S = 0.5  # after which one that was lost is tried again
LOOK_S = 1.0  # interval between checks for a reply, in seconds
_STARTS = WaitKind("the run ends; its last checkpoint is kept")


class WorkerError(FlowzooError, RuntimeError):
    """Rollout workers or graders failed, are gone, or are not as they should be."""


def ask_all(
    who: str,
    actors: Sequence[object],
    call: Callable[[Any], Any],
    within: float = STARTED_WITHIN_S,
) -> list[Any]:
    """Replies of all `actors`, in their order; `call` makes the reference."""
    waiting = {call(actor): number for number, actor in enumerate(actors)}
    with _STARTS.wait(f"{who}s", who, limit_s=within):
        return _answers(who, actors, call, waiting, within)


def _answers(
    who: str, actors: Sequence[object], call: Callable[[Any], Any],
    waiting: dict[Any, int], within: float,
) -> list[Any]:  # fmt: skip
    replies: dict[int, Any] = {}
    deadline = time.monotonic() + within
    while waiting:
        done, _ = ray.wait(list(waiting), timeout=LOOK_S)
        for ref in done:
            number = waiting.pop(ref)
            try:
                replies[number] = accept(ray.get(ref))
            except (ActorDiedError, RayTaskError) as error:
                raise WorkerError(
                    f"{who} {number} cannot be started: {last_line(error)}"
                ) from error
            except RayError:
                time.sleep(PAUSE_S)
                waiting[call(actors[number])] = number
        if waiting and time.monotonic() > deadline:
            raise WorkerError(
                f"{who}s {listed(waiting.values())} have not answered in {within:.0f} s"
            )
    return [replies[number] for number in range(len(actors))]


def accept(reply: Any) -> Any:
    """Return an actor's reply; the error that it was sent in place of one is raised."""
    if isinstance(reply, Failed):
        raise deserialize_error(reply.error, WorkerError)
    return reply


def last_line(error: BaseException) -> str:
    """Last line of an error's message, or its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def listed(numbers: Iterable[int]) -> str:
    """`1, 2, 3`."""
    return ", ".join(str(number) for number in sorted(set(numbers)))
