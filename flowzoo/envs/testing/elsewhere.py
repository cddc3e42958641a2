"""Digests of a task's problems, computed in a fresh process from the pickled task."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import pickle
import sys
from collections.abc import Sequence

from flowzoo.envs.tasks.task import Problem, Task
from flowzoo.errors import UsageError
from flowzoo.seeding import key_digest, key_rng

_PROBLEMS = 8


def digests(task: Task) -> dict[str, str]:
    """Digests of the first training problems, their prompts and what experts reply to them."""
    size = task.size("train")
    count = _PROBLEMS if size is None else min(size, _PROBLEMS)
    by_name = {}
    for index in range(count):
        problem = task.problem(index, "train")
        replies = expert_replies(task, problem)
        by_name[f"problem({index}, 'train')"] = key_digest(
            problem.id, problem.text, problem.gold
        ).hex()
        by_name[f"the prompt of problem {index}"] = key_digest(task.prompt(problem)).hex()
        by_name[f"a reply of solve() to problem {index}"] = key_digest(*replies).hex()
    return by_name


def expert_replies(task: Task, problem: Problem) -> list[str]:
    """A right and a wrong expert reply to a problem; [] if its answer is unknown."""
    with contextlib.suppress(UsageError):
        return [task.solve(problem, key_rng("replies", problem.index), r) for r in (True, False)]
    return []


def main(modules: Sequence[tuple[str, str]]) -> None:
    """Read a pickled task from stdin, and print what it says; `modules` (name, file) define it."""
    for name, file in modules:
        _provide(name, file)
    task = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the process that started this one
    print(json.dumps(digests(task)))  # noqa: T201 - the answer to that process


def _provide(name: str, file: str) -> None:
    # Import a module that cannot be found by its name from its file, as `multiprocessing` does.
    if name != "__main__":
        try:
            importlib.import_module(name)
        except ImportError:
            pass
        else:
            return
    module_name = (
        "__mp_main__" if name == "__main__" else name
    )  # `if __name__ == "__main__":` is skipped
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = sys.modules[name] = module
    spec.loader.exec_module(module)
