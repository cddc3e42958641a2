"""Choosing problems: held-out sets for evaluation, and the training stream."""

import threading
from collections.abc import Sequence
from functools import lru_cache

from flowzoo.envs import Problem, Task
from flowzoo.envs.tasks.task import get_problem, get_size
from flowzoo.errors import UsageError
from flowzoo.seeding import key_int, key_rng

_LOOKS = 50
"""Problems drawn for each distinct one before giving up."""


def distinct_problems(
    task: Task, split: str, count: int | None, start: int = 0, option: str = ""
) -> list[Problem]:
    """The first `count` problems of `split` with different texts, from index `start` on.

    `count` None takes every row of a finite split, repeated texts included. `option` is the setting
    of `count`, for the remedy in the message.

    Raises:
        UsageError: the split has fewer distinct problems, or `count` is None for a generator.
    """
    # A generator may repeat an instance; counting it twice would make intervals too narrow. The
    # search ends after a run of repetitions that, if one more equally likely instance existed,
    # would have a probability below 10^-20.
    size = get_size(task, split)
    if count is None:
        if size is None:
            raise UsageError("a generated split has no end: say how many problems (n)")
        return [get_problem(task, index, split) for index in range(start, size)]
    if count < 1:
        raise UsageError(f"the number of problems must be >= 1, got {count}")
    most = task.distinct(split) if size is None else None
    if most is not None and count > most:
        raise _too_few(task, split, most, start, count, option)
    end = start + _LOOKS * count if size is None else size
    seen: set[str] = set()
    problems: list[Problem] = []
    repeated = 0
    for index in range(start, end):
        problem = get_problem(task, index, split)
        repeated = repeated + 1 if problem.text in seen else 0
        if not repeated:
            seen.add(problem.text)
            problems.append(problem)
        if len(problems) == count:
            return problems
        if size is None and repeated > _LOOKS * (len(problems) + 1):
            break
    raise _too_few(task, split, len(problems), start, count, option)


def _too_few(task: Task, split: str, most: int, start: int, count: int, option: str) -> UsageError:
    remedy = f": {option} {most} takes all of them" if option and most else ""
    return UsageError(
        f"split {split!r} of task {task.name!r} has only {most} distinct problems from "
        f"index {start} on, {count} were asked for{remedy}"
    )


@lru_cache(maxsize=4)
def _shuffle(size: int, seed: int, epoch: int) -> tuple[int, ...]:
    order = list(range(size))
    key_rng("epoch", seed, epoch).shuffle(order)
    return tuple(order)


def indices_from(size: int | None, seed: int, first: int, count: int) -> list[int]:
    """Elements `first` to `first + count` of the endless stream of training problems."""
    # A function of its arguments. A finite split is gone through in a new order every epoch; a
    # generator (`size` None) is sampled without end.
    if size is None:
        return [key_int("stream", seed, index) % 2**31 for index in range(first, first + count)]
    return [
        _shuffle(size, seed, index // size)[index % size] for index in range(first, first + count)
    ]


class ProblemStream:
    """The training problems, one after another.

    `cursor` counts the problems drawn so far; a run saves it, and needs to save nothing else.
    """

    def __init__(
        self, split: str, seed: int, only: Sequence[int] | None = None, cursor: int = 0
    ) -> None:
        """Start at `cursor`.

        Args:
            split: where the problems come from.
            seed: of their order.
            only: the indices that may be drawn; None: all of the split.
            cursor: problems drawn before.
        """
        if only is not None and not only:
            raise UsageError("there is no problem left to train on: widen the bounds of the filter")
        if cursor < 0:
            raise UsageError(f"a data cursor must be at least 0, got {cursor}")
        self.split, self.seed, self.cursor = split, seed, cursor
        self._only = None if only is None else tuple(only)
        self._lock = threading.Lock()

    def take(self, task: Task, count: int) -> list[Problem]:
        """The next `count` problems of `task`, which may change from step to step (its level)."""
        size = get_size(task, self.split) if self._only is None else len(self._only)
        with self._lock:  # two batches may be refilled at the same time
            first, self.cursor = self.cursor, self.cursor + count
        indices = indices_from(size, self.seed, first, count)
        chosen = indices if self._only is None else [self._only[i] for i in indices]
        return [get_problem(task, index, self.split) for index in chosen]
