"""Waiting for several other processes at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def at_once(
    lines: Sequence[Mapping[str, Callable[[], T]]], stop: Callable[[], None]
) -> dict[str, T]:
    """What all works return, by name: those of a line one after another, each line in a thread.

    Args:
        lines: of work that mostly waits for others.
        stop: ends what is waited for, soon, with an error; called where a work has raised, or
            this thread is interrupted, maybe more than once and from any thread.

    Raises:
        Exception: the first that was raised, when all lines have ended. What the others raise
            then comes of `stop`, and is dropped.
    """
    found: dict[str, T] = {}
    raised: list[Exception] = []

    def do(line: Mapping[str, Callable[[], T]]) -> None:
        for name, work in line.items():
            if raised:
                return
            try:
                found[name] = work()
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
    return {name: found[name] for line in lines for name in line}
