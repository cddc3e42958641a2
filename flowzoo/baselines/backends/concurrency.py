"""Concurrent calls to several other processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def run_concurrently(
    lines: Sequence[Mapping[str, Callable[[], T]]], stop: Callable[[], None]
) -> dict[str, T]:
    """Run `lines` concurrently, the works of a line in order; return results by name.

    Args:
        lines: of work that mostly waits for others.
        stop: ends what is waited for, soon, with an error; called where a work has raised, or
            this thread is interrupted, maybe more than once and from any thread.

    Raises:
        Exception: the first that was raised, when all lines have ended. What the others raise
            then comes of `stop`, and is dropped.
    """
    results: dict[str, T] = {}
    raised: list[Exception] = []

    def do(line: Mapping[str, Callable[[], T]]) -> None:
        for name, work in line.items():
            if raised:
                return
            try:
                results[name] = work()
            except Exception as error:
                raised.append(error)
                stop()
                return

    if len(lines) < 2:
        return {name: work() for line in lines for name, work in line.items()}
    with ThreadPoolExecutor(len(lines), "flowzoo-at-once") as threads:
        try:
            for done in [threads.submit(do, line) for line in lines]:
                done.result()
        except BaseException:  # an interruption, or `stop` has failed
            stop()
            raise
    if raised:
        raise raised[0]
    return {name: results[name] for line in lines for name in line}
