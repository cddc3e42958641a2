"""Learner groups with learners that only meet; see `world.py`."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flowzoo.errors import FlowzooError, UsageError


def said(work: Callable[[], Any]) -> str:
    """The error that a work raises, as text that fits into a file."""
    try:
        work()
    except FlowzooError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


class TinyLearner:
    """The part of a learner that a learner worker uses."""

    notes = ("a note",)
    model = SimpleNamespace(device=SimpleNamespace(type="cpu"))

    def __init__(self) -> None:
        self.steps, self.lr_scale = 0, 1.0

    def join(self, learner_group: Any) -> None:
        self.learner_group = learner_group


def tiny_learners() -> dict[str, Any]:
    return {"p": TinyLearner()}


def together(learner: Any, what: str) -> list[Any]:
    """Something collective, of which the second rank fails in a way of its own."""
    learner.steps += 1
    if learner.learner_group.rank == 1:
        if what == "raises":
            raise UsageError("no such row")
        if what == "dies":
            os._exit(1)
        if what == "sleeps":
            time.sleep(600)
    return learner.learner_group.gather((what, learner.lr_scale, os.getpid()))


def group_alone(address: str) -> dict[str, Any]:
    """Two ranks that work together, until one does not."""
    import ray

    from flowzoo.baselines.backends.ray import learners as learner_groups
    from flowzoo.baselines.backends.ray.cluster import connect
    from flowzoo.baselines.backends.ray.worker import OpenPlayer

    connect(address, {})
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    usual, learner_groups.GRACE_S = learner_groups.DONE_WITHIN_S, 2.0
    found: dict[str, Any] = {}
    for what in ("raises", "dies", "sleeps"):
        opener = OpenPlayer(f"{Path(__file__).stem}:tiny_learners", ())
        one, group = learner_groups.start_learners(2, opener, 1, 0)
        found["strategy"] = ray.util.placement_group_table(group)["strategy"]
        learner = one.join("none")["p"]
        learner.lr_scale = 0.5
        found["works"] = learner.apply(together, "works")
        found["state"] = [learner.notes, learner.steps, learner.lr_scale]
        if what == "sleeps":
            learner_groups.DONE_WITHIN_S = 3.0
        began = time.monotonic()
        found[what] = said(partial(learner.apply, together, what))
        found[f"{what}, seconds"] = time.monotonic() - began
        ray.util.remove_placement_group(group)
    learner_groups.DONE_WITHIN_S = usual
    ray.shutdown()
    return found


def tiny_learners_of(policies: Sequence[str]) -> dict[str, Any]:
    return {policy: TinyLearner() for policy in policies}


def meet(learner: Any, folder: Path, name: str, other: str) -> int:
    """Begin, and go on when the other has begun."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).touch()
    deadline = time.monotonic() + 60
    while not (folder / other).exists():
        if time.monotonic() > deadline:
            raise UsageError(f"{other} has not begun beside {name}")
        time.sleep(0.01)
    return os.getpid()


def upset(learner: Any, folder: Path, name: str, other: str, what: str) -> None:
    """Begin beside the other, and fail; or go on for long."""
    meet(learner, folder, name, other)
    if what == "raises":
        raise UsageError("no such row")
    if what == "dies":
        os._exit(1)
    time.sleep(600)


def groups_alone(address: str, folder: Path) -> dict[str, Any]:
    """Groups of two policies and of one; the second fails while the first works."""
    import ray

    from flowzoo.baselines.backends.ray.cluster import connect
    from flowzoo.baselines.backends.ray.learners import RemoteLearnerGroups
    from flowzoo.baselines.backends.ray.worker import OpenPlayer
    from flowzoo.baselines.settings.policies import LearnerGroupPlan

    connect(address, {})
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    opener = OpenPlayer(f"{Path(__file__).stem}:tiny_learners_of", ())
    found: dict[str, Any] = {}
    for what in ("raises", "dies"):
        some = RemoteLearnerGroups(
            [LearnerGroupPlan(("a", "c"), 1), LearnerGroupPlan(("b",), 1)], opener, 1, 0
        )
        tables = [ray.util.placement_group_table(group) for group in some.groups]
        found["strategies"] = [table["strategy"] for table in tables]
        learners = some.join("none")
        pairs = {"a": "b", "b": "a", "c": "a"}
        there = folder / what
        found["works"] = some.together(
            {one: partial(learners[one].apply, meet, there, one, pairs[one]) for one in learners}
        )
        ends = {"a": "sleeps", "b": what}
        began = time.monotonic()
        found[what] = said(
            partial(some.together, {
                one: partial(learners[one].apply, upset, there / "then", one, pairs[one], end)
                for one, end in ends.items()
            })
        )  # fmt: skip
        found[f"{what}, seconds"] = time.monotonic() - began
        for group in some.groups:
            ray.util.remove_placement_group(group)
    ray.shutdown()
    return found
