"""From the arguments of one `run` to its batches, and from their verdicts to its answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from flowzoo.errors import UsageError
from flowzoo.sandbox.backends import Backend
from flowzoo.sandbox.box.batch import ProgramBatch, ProgramJob, cache_keys
from flowzoo.sandbox.box.engine import SandboxError
from flowzoo.sandbox.box.job import digest, make_limits, make_plans
from flowzoo.sandbox.program import Limits, Program, Test, Verdict
from flowzoo.sandbox.verdict_cache import VerdictCache

OnError = Literal["raise", "verdict"]


def make_program_jobs(
    backend: Backend,
    programs: Sequence[Program],
    tests: Sequence[Sequence[Test]],
    limits: Limits | Sequence[Limits],
) -> list[ProgramJob]:
    """Programs to run, checked."""
    plans = make_plans(programs, tests)
    each = make_limits(limits, len(programs))
    for limit in set(each):
        backend.check(limit)
    for row, (plan, limit) in enumerate(zip(plans, each, strict=True)):
        if plan.longest > limit.output_bytes:
            raise UsageError(
                f"tests[{row}] expect {plan.longest} bytes of output, and output_bytes="
                f"{limit.output_bytes} lets no program print them: allow as many"
            )
    rows = zip(programs, plans, each, strict=True)
    return [ProgramJob(row, *rest) for row, rest in enumerate(rows)]


def rounds(
    cache: VerdictCache | None,
    works: list[ProgramJob],
    tests: Sequence[Sequence[Test]],
    stop: bool,
    verdicts: dict[int, Verdict],
) -> Iterator[ProgramBatch]:
    """The batches to run, one after the other, each once the one before is in `verdicts`."""
    # Without a cache it is one batch. With one, equal programs are run once, and what the cache
    # does not keep is run for each of them in a second batch.
    if cache is None:
        yield from _batches(works, stop)
        return
    keys = cache_keys(works, tests, stop)
    for once in (True, False):
        _recall(cache, keys, verdicts)
        todo = [work for work in works if work.row not in verdicts]
        if once:
            todo = list({keys[work.row]: work for work in reversed(todo)}.values())[::-1]
        yield from _batches(todo, stop)
        for work in todo:
            cache.put(keys[work.row], verdicts[work.row])


def finish(
    programs: Sequence[Program], by_index: dict[int, Verdict], on_error: OnError
) -> list[Verdict]:
    """The verdicts in order."""
    verdicts = [by_index[row] for row in range(len(programs))]
    lost = [row for row, verdict in enumerate(verdicts) if verdict.status == "SE"]
    if not lost or on_error == "verdict":
        return verdicts
    row, verdict = lost[0], verdicts[lost[0]]
    detail = next(case.detail for case in verdict.cases if case.status == "SE")
    raise SandboxError(
        f"the sandbox ({verdict.tier}) could not judge {len(lost)} of {len(verdicts)} programs; "
        f"the first is programs[{row}] (sha256 {digest(programs[row])}): {detail}. The other "
        "verdicts are in this error's `verdicts`. Run the programs again, look at `flowzoo sandbox "
        "check`, or pass on_error='verdict' and give such programs no score",
        tuple(verdicts),
    )


def _recall(cache: VerdictCache, keys: list[bytes], verdicts: dict[int, Verdict]) -> None:
    for row, key in enumerate(keys):
        if row not in verdicts and (cached := cache.get(key)) is not None:
            verdicts[row] = cached


def _batches(works: list[ProgramJob], stop: bool) -> Iterator[ProgramBatch]:
    if works:
        yield ProgramBatch(works, stop)
