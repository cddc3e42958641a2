"""Resolution of the effects of scripts, batched over episodes."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flowzoo.envs.door.server import advance_all
from flowzoo.envs.readers.judgments import judge_messages, read_judgment
from flowzoo.envs.script import (
    Advance,
    Effect,
    EffectResult,
    EquivalenceClasses,
    Grade,
    Judge,
    JudgeResult,
    Run,
    Search,
    ToolResult,
    UseTool,
)
from flowzoo.envs.tasks.task import Problem, Task, call_named
from flowzoo.envs.workflow import JudgeFunction
from flowzoo.errors import UsageError
from flowzoo.waits import function_call

PendingEffect = tuple[Problem, Effect]  # an effect and the problem it belongs to


def resolve(
    task: Task, jobs: Sequence[PendingEffect], judge: JudgeFunction | None = None
) -> list[EffectResult]:
    """Resolve `jobs`, in order; effects of one kind form one batch of the task.

    Raises:
        UsageError: one of the effects is a `Judge`, and `judge` is None.
    """
    results: list[Any] = [None] * len(jobs)
    kinds: dict[tuple[type, int], list[int]] = {}
    for position, (_, effect) in enumerate(jobs):
        width = effect.k if isinstance(effect, Search) else 0
        kinds.setdefault((type(effect), width), []).append(position)
    for (kind, _), positions in kinds.items():
        batch = _carry_out(task, kind, [jobs[position] for position in positions], judge)
        for position, result in zip(positions, batch, strict=True):
            results[position] = result
    return results


def _judge(judge: JudgeFunction | None, problem: Problem, effect: Judge) -> JudgeResult:
    if judge is None:
        raise UsageError(
            "the workflow asks a judge, but none is set: give env(judge=FUNCTION), a function "
            "from a chat to a reply, or in rollouts a policy for `judge` (--policy judge=POLICY)"
        )
    name = f"the judge of problem {problem.id}{_caller(effect)}"
    with function_call(name):
        reply = call_named(name, partial(judge, judge_messages(effect, problem.text)))
    if not isinstance(reply, str):
        description = f"{type(reply).__name__} {reply!r:.60}"
        raise UsageError(f"{name}: `judge` must return a str, got {description}")
    return read_judgment(effect, problem.text, reply)


def _caller(effect: Judge | UseTool) -> str:
    return f" ({effect.caller})" if effect.caller else ""


def _use_tool(problem: Problem, effect: UseTool) -> ToolResult:
    name = f"tool {effect.call.name} of problem {problem.id}{_caller(effect)}"
    with function_call(name):
        texts = call_named(name, lambda: list(effect.source.use([effect.call])))
    if len(texts) != 1 or not isinstance(texts[0], str):
        raise UsageError(
            f"{name}: `use` of {effect.source!r:.100} must return one str per call: {texts!r:.100}"
        )
    return ToolResult(texts[0])


def _carry_out(
    task: Task, kind: type, jobs: Sequence[PendingEffect], judge: JudgeFunction | None
) -> Sequence[Any]:
    # The effects are of one kind, searches also of one width.
    problems: list[Problem] = [problem for problem, _ in jobs]
    effects: list[Any] = [effect for _, effect in jobs]
    if kind is Advance:
        return advance_all(effects)
    if kind is UseTool:
        return list(map(_use_tool, problems, effects))
    if kind is Judge:
        return list(map(partial(_judge, judge), problems, effects))
    method, call = _BATCHES[kind]
    name = f"task {task.name!r}: {method}"
    results = call_named(name, lambda: list(call(task, problems, effects)))
    if len(results) != len(jobs):
        raise UsageError(
            f"{method} of task {task.name!r} must return one result per {kind.__name__}: "
            f"got {len(results)} for {len(jobs)}"
        )
    return results


_Batch = Callable[[Task, list[Problem], list[Any]], Sequence[EffectResult]]
# Method of the task, for messages, and its call.
_BATCHES: dict[type, tuple[str, _Batch]] = {
    Grade: ("grade_batch", lambda task, ps, es: task.grade_batch(ps, [e.answer for e in es])),
    EquivalenceClasses: (
        "classes_batch",
        lambda task, ps, es: task.classes_batch(ps, [e.answers for e in es]),
    ),
    Run: ("run_batch", lambda task, _, es: task.run_batch(es)),
    Search: (
        "search_batch",
        lambda task, ps, es: task.search_batch(ps, [e.query for e in es], es[0].k),
    ),
}
