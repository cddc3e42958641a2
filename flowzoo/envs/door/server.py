"""The door of this process: a server on the loopback interface, and the runs that it serves.

A run that waits for replies is parked under the digest of its requests and their replies. An
`Advance` resumes the parked run with its history. If there is none (a fork, another process, an
evicted run), the program is run again with the replies of the history.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from flowzoo.envs.door.launch import ProgramForks, ProgramThreads, run_command
from flowzoo.envs.door.run import TICK_S, ProgramRun
from flowzoo.envs.script import Advance, AgentProgram, ProgramEnd, Progress, spot_digest
from flowzoo.errors import DivergedError, UsageError, missing_extra
from flowzoo.functions import FunctionSetting

if TYPE_CHECKING:
    from flowzoo.front.server import FrontServer

_log = logging.getLogger("flowzoo")


class ProgramRuns:
    """The runs of one program, active or parked."""

    def __init__(self, program: AgentProgram) -> None:
        self.program = program
        self.slots = asyncio.Semaphore(program.max_open)
        self.moving = 0
        self.parked: dict[ProgramRun, bytes] = {}  # spot by run, in order of parking
        self.told: set[str] = set()

    def take(self, spot: bytes) -> ProgramRun | None:
        """Unpark and return the first run that waits at `spot`, or None."""
        run = next((run for run, waits in self.parked.items() if waits == spot), None)
        if run is not None:
            del self.parked[run]
        return run

    def surplus(self) -> list[ProgramRun]:
        """Unpark and return the runs to end, parked longest, to respect the limit of open runs."""
        count = max(0, len(self.parked) + self.moving - self.program.max_open)
        runs = list(self.parked)[:count]
        for run in runs:
            del self.parked[run]
        return runs

    def tell(self, end: ProgramEnd) -> None:
        """Log the first failure of each kind: a faulty program fails in all episodes."""
        if end.status != "answer" and end.status not in self.told:
            self.told.add(end.status)
            refusal = f" (a request was refused: {end.refusal})" if end.refusal else ""
            _log.warning("agent program ended by %s: %s%s", end.status, end.reason, refusal)


class Door:
    """The server with its runs; `door()` returns this process's instance."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.runs: dict[str, ProgramRun] = {}  # by key
        self.programs: dict[AgentProgram, ProgramRuns] = {}
        self.moving: set[ProgramRun] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.ticker: asyncio.Task[None] | None = None
        self._threads = ProgramThreads()
        self._forks: dict[FunctionSetting, ProgramForks] = {}
        self.base_url = ""
        self.loop = asyncio.new_event_loop()

    def start(self, server: FrontServer) -> None:
        """Serve on a separate thread."""
        self.base_url = f"{server.url}/v1"

        def serve() -> None:
            asyncio.set_event_loop(self.loop)
            self.loop.run_until_complete(server.listen())

        threading.Thread(target=serve, name="door of agent programs", daemon=True).start()
        atexit.register(self.stop_all)

    def stop_all(self) -> None:
        """Kill all commands."""
        for run in list(self.runs.values()) if os.getpid() == self.process else ():
            run.stop()

    # -- programs ------------------------------------------------------------------------------

    async def advance(self, effect: Advance) -> Progress:
        """Carry out an `Advance`, on the door's loop.

        Raises:
            DivergedError: the program was run again and sent other requests.
            UsageError: it must be run again and is not repeatable.
        """
        runs = self.programs.setdefault(effect.program, ProgramRuns(effect.program))
        async with runs.slots:
            runs.moving += 1
            try:
                run, progress = await self._advance(runs, effect)
            finally:
                runs.moving -= 1
            if progress.end is None:
                runs.parked[run] = spot_digest(effect.key, progress)
            else:
                runs.tell(progress.end)
        return progress

    async def _advance(self, runs: ProgramRuns, effect: Advance) -> tuple[ProgramRun, Progress]:
        run = runs.take(effect.spot) if effect.history else None
        fresh = run is None
        if run is None:
            if effect.history and not effect.program.repeatable:
                raise UsageError(
                    "the agent program is declared as not repeatable (repeatable=false), and its "
                    "run of this episode no longer exists: forks and tree sampling need a program "
                    "that sends the same requests after the same replies"
                )
            for other in runs.surplus():
                other.finish("dropped")
                del self.runs[other.key]
            run = self._begin(effect)
        self.moving.add(run)
        if self.ticker is None:
            self.ticker = self.loop.create_task(self._tick())
        try:
            for exchange in effect.history if fresh else effect.history[-1:]:
                if fresh and not await run.reach(exchange.requests):
                    raise _divergence(run)
                run.answer(exchange)
            return run, await run.pause()
        except BaseException:
            run.finish("dropped")
            raise
        finally:
            self.moving.discard(run)
            if run.end is not None:
                del self.runs[run.key]

    def _begin(self, effect: Advance) -> ProgramRun:
        run = ProgramRun(effect.program, effect.question)
        self.runs[run.key] = run
        function = run.program.run
        if isinstance(function, tuple):
            work = run_command(run, self.base_url)
        elif isinstance(function, FunctionSetting) and hasattr(os, "fork"):
            forks = self._forks.setdefault(function, ProgramForks(function))
            work = forks.run(run, self.base_url)
        else:
            self._threads.start(run, self.base_url)
            return run
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return run

    async def _tick(self) -> None:
        while self.moving:
            await asyncio.sleep(TICK_S)
            for run in list(self.moving):
                run.tick()
        self.ticker = None


def _divergence(run: ProgramRun) -> DivergedError:
    models = ", ".join(entry.request.model for entry in run.open) or "nothing"
    how = f"ended by {run.end.status} ({run.end.reason})" if run.end else f"asked {models}"
    return DivergedError(
        f"the agent program sent other requests when its episode was replayed: it {how}. After the "
        "same replies it must send the same requests (no clocks, no unseeded randomness), or be "
        "declared as not repeatable: repeatable=false"
    )


_DOORS: list[Door] = []
_LOCK = threading.Lock()


def door() -> Door:
    """The door of this process, opened at the first call.

    Raises:
        MissingExtraError: the server's libraries are not installed.
    """
    with _LOCK:
        if not _DOORS or _DOORS[0].process != os.getpid():  # a forked process has no threads
            try:
                from flowzoo.envs.door.app import open_server
            except ImportError as error:
                raise missing_extra("uvicorn", "programs", "an agent program") from error
            opened = Door()
            opened.start(open_server(opened.runs))
            _DOORS[:] = [opened]
        return _DOORS[0]


def submit(effects: Sequence[Advance]) -> list[Future[Progress]]:
    """Start to resolve effects; all programs run concurrently."""
    here = door()
    return [asyncio.run_coroutine_threadsafe(here.advance(effect), here.loop) for effect in effects]


def advance_all(effects: Sequence[Advance]) -> list[Progress]:
    """Return results of effects in order; block until every program waits or has ended."""
    futures = submit(effects)
    try:
        return [future.result() for future in futures]
    except BaseException:
        for future in futures:
            future.cancel()
        raise
