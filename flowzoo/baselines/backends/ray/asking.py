"""Asking several actors the same before they are used, whoever of them dies meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from flowzoo.baselines.backends.ray.worker import Failed
from flowzoo.baselines.backends.told import hear
from flowzoo.errors import FlowzooError

STARTED_WITHIN_S = 600.0
"""How long an actor may take to start and to load what it needs."""
BACK_WITHIN_S = 300.0
"""How long is waited where all are gone."""
PAUSE_S = 0.5
"""After which one that was lost is tried again."""
LOOK_S = 1.0
"""How long an answer is waited for at a time."""


class WorkerError(FlowzooError, RuntimeError):
    """Rollout workers or graders failed, are gone, or are not as they should be."""


def ask_all(
    who: str,
    actors: Sequence[Any],
    call: Callable[[Any], Any],
    within: float = STARTED_WITHIN_S,
) -> list[Any]:
    """What every one of `actors` answers, in their order; `call` makes the reference.

    Raises:
        WorkerError: one cannot be started, or does not answer in time; `who` says what they are.
        FlowzooError: what one raised.
    """
    waiting = {call(actor): number for number, actor in enumerate(actors)}
    found: dict[int, Any] = {}
    deadline = time.monotonic() + within
    while waiting:
        done, _ = ray.wait(list(waiting), timeout=LOOK_S)
        for ref in done:
            number = waiting.pop(ref)
            try:
                found[number] = _heard(ray.get(ref))
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
    return [found[number] for number in range(len(actors))]


def _heard(reply: Any) -> Any:
    """An answer that is no error; raises what an actor raised."""
    if isinstance(reply, Failed):
        raise hear(reply.error, WorkerError)
    return reply


def last_line(error: BaseException) -> str:
    """What an error says in the end, or its kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def listed(numbers: Iterable[int]) -> str:
    """`1, 2, 3`."""
    return ", ".join(str(number) for number in sorted(set(numbers)))
