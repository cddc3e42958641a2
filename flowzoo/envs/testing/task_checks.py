"""Checks of tasks: indexing, splits, grading, copies and other processes."""

import importlib
import importlib.util
import json
import math
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from flowzoo.envs.script import GradeResult
from flowzoo.envs.tasks.task import SPLITS, Problem, Task
from flowzoo.envs.testing.playthrough import HOSTILE, expert_replies, pickle_bytes, require
from flowzoo.envs.testing.slow_replies import check_readers, time_limit
from flowzoo.errors import UsageError
from flowzoo.seeding import key_digest

LOOKS = 30  # number of checked problems per split; fewer if grading is slow
MOVED = 8  # problems that another process also draws
GRADED = 4  # problems whose answers are graded
GRADING_S = 60.0  # most CPU seconds of this process for grading a batch
OWN_SPLITS = tuple(split for split in SPLITS if split != "all")


def first_problems(task: Task, split: str, count: int = LOOKS) -> list[Problem]:
    """The first `count` problems of `split`, or all if there are fewer."""
    size = task.size(split)
    return [
        task.problem(index, split) for index in range(count if size is None else min(size, count))
    ]


def check_items(task: Task) -> None:
    """Check that a problem is a function of split and index, and has both in its id."""
    for split in SPLITS:
        size = task.size(split)
        whole = size is None or (isinstance(size, int) and not isinstance(size, bool) and size >= 0)
        require(whole, f"size({split!r}) is {size!r}: expected a whole number, or None for endless")
        problems = first_problems(task, split)
        require(bool(problems) or split != "train", "there are no training problems")
        for index, problem in enumerate(problems):
            name = f"problem({index}, {split!r})"
            require(isinstance(problem, Problem), f"{name} must be a Problem, got {type(problem)}")
            require(
                (problem.task, problem.split, problem.index) == (task.name, split, index),
                f"{name} has the id of problem {problem.index} of split {problem.split!r} of "
                f"task {problem.task!r}",
            )
            for field in ("text", "gold"):
                value = getattr(problem, field)
                require(isinstance(value, str), f"{field} of {name} is not a str: {value!r:.60}")
            require(bool(problem.text.strip()), f"the text of {name} is empty")
            require(task.problem(index, split) == problem, f"{name} differs at the second call")
        ids = [problem.id for problem in problems]
        require(
            len(set(ids)) == len(ids),
            f"two problems of split {split!r} have the same id: {ids[:3]}",
        )


def check_refusals(task: Task) -> None:
    """Check that an unknown split and an index outside a split raise `UsageError`."""
    size = task.size("train")
    wrong: list[tuple[Any, str]] = [(-1, "train"), (0, "no such split")]
    if size is not None:
        wrong.append((size, "train"))
    for index, split in wrong:
        came, cause = "", None
        try:
            task.problem(index, split)
        except UsageError:
            continue
        except Exception as error:
            came, cause = f", but raised {error!r}", error
        raise AssertionError(
            f"problem({index}, {split!r}) must raise a UsageError{came}; self.check_index(index, "
            "split) and check_split(split) do so"
        ) from cause


def check_splits(task: Task) -> None:
    """Check that no problem is in two splits, and different seeds give different problems."""
    owners: dict[tuple[str, str], str] = {}
    for split in OWN_SPLITS:
        for problem in first_problems(task, split):
            owner = owners.setdefault((problem.text, problem.gold), split)
            require(
                owner == split,
                f"splits {owner!r} and {split!r} share a problem: {problem.text!r:.80}. Assign "
                "each instance to the split split_of(text)",
            )
    seeded = is_dataclass(task) and "seed" in {field.name for field in fields(task) if field.init}
    if seeded and task.size("train") is None:
        other: Any = replace(task, seed=task.seed + 1)  # type: ignore[attr-defined, type-var]
        texts, other_texts = (
            [problem.text for problem in first_problems(each, "train")] for each in (task, other)
        )
        require(texts != other_texts, "two seeds give the same problems")


def check_prompts(task: Task) -> None:
    """Check that prompts contain the question, not the gold answer, and samples are replies."""
    for problem in first_problems(task, "train", GRADED):
        prompt = task.prompt(problem)
        require(isinstance(prompt, str) and bool(prompt), f"prompt() is {prompt!r:.60}, not a text")
        canary = "CANARY-7f3a"
        meta = {**problem.meta, "solution": canary}
        planted = task.prompt(replace(problem, gold=canary, meta=meta))
        require(canary not in planted, "the prompt shows the gold answer or the worked solution")
        require(planted == prompt, "the prompt depends on the gold answer or the worked solution")
    samples = task.samples()
    fit = (
        isinstance(samples, tuple)
        and samples
        and all(isinstance(sample, str) for sample in samples)
    )
    require(bool(fit), f"samples() is {samples!r:.80}: expected a tuple of short replies")


def check_reference(task: Task) -> None:
    """Check that the reference scores 1 (`reference_score`), a wrong expert less, no answer 0."""
    least = task.reference_score
    for problem in first_problems(task, "train", GRADED):
        answer = task.reference(problem)
        if answer is None:
            continue  # the answer is unknown
        score = grade(task, problem, answer).score
        require(
            score >= least,
            f"the reference answer of {problem.id}, {answer!r:.80}, scores {score!r}, expected at "
            f"least {least:g}",
        )
        for reply in expert_replies(task, problem)[1:]:
            worse = grade(task, problem, task.answer(reply)).score
            require(
                worse < min(score, least),
                f"a wrong reply of the expert to {problem.id}, {reply!r:.80}, scores {worse!r}",
            )
        require(grade(task, problem, None).score == 0, "no answer (None) must score 0")


def grade(task: Task, problem: Problem, answer: str | None) -> GradeResult:
    """The grade of one answer."""
    graded = task.grade_batch([problem], [answer])
    require(len(graded) == 1, f"grade_batch returned {len(graded)} results for one answer")
    return graded[0]


def some_answers(task: Task, problem: Problem) -> Iterator[str | None]:
    """Right, wrong, hostile and missing answers to a problem."""
    for reply in expert_replies(task, problem):
        yield task.answer(reply)
    for text in (*HOSTILE.values(), *task.samples()):
        for read in (task.answer, task.answer_lenient, task.answer_published):
            answer = read(text)
            fits = answer is None or isinstance(answer, str)
            require(fits, f"{read.__name__}() returned {type(answer).__name__}, not a str or None")
            yield answer
    yield None


def check_grades(task: Task) -> None:
    """Check that every answer gets a score in [0, 1], the same alone and in a batch."""
    problems = first_problems(task, "train", 2)
    pairs = list(dict.fromkeys((p.index, a) for p in problems for a in some_answers(task, p)))
    by_index = {problem.index: problem for problem in problems}
    rows = [(by_index[index], answer) for index, answer in pairs]
    random.Random(0).shuffle(rows)
    with time_limit(f"grade_batch() of {len(rows)} right, wrong and hostile answers", GRADING_S):
        together = task.grade_batch([row[0] for row in rows], [row[1] for row in rows])
    require(
        len(together) == len(rows),
        f"grade_batch returned {len(together)} results for {len(rows)} answers",
    )
    for (problem, answer), graded in zip(rows, together, strict=True):
        subject = f"the grade of {answer!r:.60} for {problem.id}"
        require(type(graded) is GradeResult, f"{subject} must be a GradeResult, got {graded!r:.60}")
        score = graded.score
        number = isinstance(score, int | float) and math.isfinite(score) and 0 <= score <= 1
        require(number, f"{subject} is {score!r}: expected a number from 0 to 1")
        require(isinstance(graded.status, str), f"the status of {subject} is {graded.status!r}")
        alone = grade(task, problem, answer)
        require(alone == graded, f"{subject} is {graded!r:.80} in a batch, but {alone!r:.80} alone")


def check_classes(task: Task) -> None:
    """Check that answer classes are numbered from 0 by first appearance, with -1 for None."""
    problem = task.problem(0, "train")
    answers = [*dict.fromkeys(some_answers(task, problem)), None]
    answers += answers[:2]
    classes = task.classes(problem, answers)
    require(
        isinstance(classes, tuple) and len(classes) == len(answers),
        f"classes() must return a tuple of {len(answers)} numbers, got {classes!r:.80}",
    )
    newest = -1
    for answer, number in zip(answers, classes, strict=True):
        if answer is None:
            require(number == -1, f"classes() numbers None {number!r} instead of -1")
            continue
        require(0 <= number <= newest + 1, f"classes() skips numbers: {classes!r:.80}")
        newest = max(newest, number)
    require(classes[:2] == classes[-2:], "equal answers are in different classes")
    batch = task.classes_batch([problem, problem], [answers, answers[:1]])
    require(batch[0] == classes, "classes_batch() and classes() differ")


def check_copies(task: Task) -> None:
    """Check that a pickled copy has the same problems and grades, here and in another process."""
    check_moved(task, digests)


def check_moved(subject: object, digests: Callable[[Any], dict[str, str]]) -> None:
    """Check that a pickled copy has the same digests, here and in another process."""
    stored = pickle_bytes(subject)
    here = digests(subject)
    require(digests(pickle.loads(stored)) == here, "a pickled copy has other problems")  # noqa: S301 - made above
    for name, digest in elsewhere(subject, stored, digests).items():
        require(
            digest == here[name],
            f"{name} differs in another process: use problem.rng() or flowzoo.seeding, "
            "never hash(), the clock or a global generator",
        )


def elsewhere(
    subject: object, stored: bytes, digests: Callable[[Any], dict[str, str]]
) -> dict[str, str]:
    """Digests of the pickled subject in a fresh process; empty if its class is in no file."""
    modules = []
    for kind in (*type(subject).__mro__, *type(getattr(subject, "task", None)).__mro__):
        module = sys.modules.get(kind.__module__)
        file = getattr(module, "__file__", None)
        if kind.__module__ == "__main__" and file is None:
            return {}  # defined in an interpreter: other processes cannot import it
        if file is not None:
            modules.append((kind.__module__, file))
    made_by = [digests.__module__, digests.__name__]
    head = json.dumps({"path": sys.path, "arguments": [modules, *made_by]})
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, head],
        input=stored,
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": "1"},
        check=False,
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise AssertionError(f"another process cannot use a pickled copy: {last}")
    return json.loads(done.stdout.splitlines()[-1])


_CHILD = """
import json, sys
head = json.loads(sys.argv[1])
sys.path[:] = head["path"]
from flowzoo.envs.testing.task_checks import main
main(*head["arguments"])
"""


def digests(task: Task) -> dict[str, str]:
    """Digests of the first training problems, their prompts and expert replies."""
    size = task.size("train")
    count = MOVED if size is None else min(size, MOVED)
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


def main(modules: Sequence[tuple[str, str]], room: str, function: str) -> None:
    """Print the digests that a function makes of the pickle in stdin, which `modules` define."""
    for name, file in modules:
        _provide(name, file)
    subject = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the process that started this one
    digests_of = getattr(importlib.import_module(room), function)
    print(json.dumps(digests_of(subject)))  # noqa: T201 - the answer to that process


def _provide(name: str, file: str) -> None:
    # Import a module from its file if its name cannot be found, like `multiprocessing`.
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


# All checks of a task, in the order `check_task` runs them.
TASK_CHECKS = (
    check_items,
    check_refusals,
    check_splits,
    check_prompts,
    check_readers,
    check_reference,
    check_grades,
    check_classes,
    check_copies,
)
