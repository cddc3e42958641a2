"""Which problem an episode is about: what `reset` is told, or what is drawn from the split."""

from __future__ import annotations

import copy
import difflib
import secrets
import sys
import warnings
from collections.abc import Mapping
from types import FrameType
from typing import Any

from flowzoo.envs.settings import check_seed, whole
from flowzoo.envs.tasks.guarded import get_size
from flowzoo.envs.tasks.task import Task
from flowzoo.errors import UsageError
from flowzoo.seeding import key_int, nth

RESET_OPTIONS = ("index", "sample")
"""What `reset` knows of `options`."""
ENDLESS = 2**31 - 1
"""Indices drawn for a task without a last problem."""

_TOLD = {"options"}
"""Unknown options that were told of already; PettingZoo's own `api_test` passes that one."""
_NEAR = 0.7
"""How alike a name is to one of ours that it was meant for: `indx`, `idx`, `samples`."""
_BETWEEN = ("flowzoo", "gymnasium", "pettingzoo", "supersuit")
"""Packages whose functions and wrappers stand between a user's line and a `reset` of ours."""


def check_names(options: Mapping[str, Any]) -> None:
    """Refuse misspelt options of `reset`, and warn of others that nothing looks at.

    PettingZoo asks that unknown ones are ignored, which a name close to one of ours was not meant
    to be. Of each other name one warning is given in a process.

    Raises:
        UsageError: a name is close to one of ours.
    """
    for name in options:
        if name in RESET_OPTIONS or name in _TOLD:
            continue
        near = difflib.get_close_matches(str(name).lower(), RESET_OPTIONS, n=1, cutoff=_NEAR)
        if near:
            raise UsageError(f"reset() knows no option {name!r}: did you mean {near[0]!r}?")
        _TOLD.add(name)
        warnings.warn(
            f"reset() knows no option {name!r} and ignores it; it knows {', '.join(RESET_OPTIONS)}",
            stacklevel=users_level(),
        )


def users_level() -> int:
    """The `stacklevel` at which a warning of our caller shows the line of the user's own code."""
    frame: FrameType | None = sys._getframe(1)
    level = 0
    while frame is not None:
        level += 1
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _BETWEEN:
            return level
        frame = frame.f_back
    return 2  # all of it is ours: whoever called


class ProblemDraw:
    """A stream of problems, begun anew by every seed."""

    __slots__ = ("resets", "stream")

    def __init__(self) -> None:
        """Begin a stream that nobody can foresee."""
        self.stream = secrets.randbits(64)
        self.resets = 0

    def copy(self) -> ProblemDraw:
        """Another that goes on in the same way."""
        return copy.copy(self)

    def next(
        self, task: Task, split: str, seed: int | None, options: Mapping[str, Any]
    ) -> tuple[int, int]:
        """Index and sample of the next episode; see `WorkflowEnv.reset`.

        Raises:
            UsageError: as there; the stream is then where it was.
        """
        if options:
            check_names(options)
        stream, resets = self.stream, self.resets
        if seed is not None:
            stream, resets = key_int("reset", seed if type(seed) is int else check_seed(seed)), 0
        index = _index(task, split, options.get("index"), nth(stream, resets))
        sample = options.get("sample")
        number = resets if sample is None else whole(sample)
        if number is None or number < 0:
            raise UsageError(f'options["sample"] must be an integer >= 0, got {sample!r}')
        self.stream, self.resets = stream, resets + 1
        return index, number


def _index(task: Task, split: str, wanted: Any, drawn: int) -> int:
    """The index that is wanted, else one drawn from the split."""
    size = get_size(task, split)
    if size == 0:
        raise UsageError(f"split {split!r} of task {task.name!r} has no problems")
    if wanted is None:
        return drawn % (size or ENDLESS)
    index = whole(wanted)
    if index is None or index < 0:
        raise UsageError(f'options["index"] must be an integer >= 0, got {wanted!r}')
    if size is not None and index >= size:
        raise UsageError(
            f'options["index"] must be below {size}, the size of split {split!r}; got {index}'
        )
    return index
