"""Runs of a function that is named: a fork of one server of forks for each."""

import asyncio
import json
import logging
import os
import sys
from functools import partial
from typing import Any

from flowzoo.envs.door import fork_server
from flowzoo.envs.door.launch import arguments, clean, client_variables
from flowzoo.envs.door.run import ProgramRun, ends_noticed
from flowzoo.errors import UsageError
from flowzoo.functions import FunctionSetting
from flowzoo.sandbox.children import keeper_command

MOST_LINES = 5
"""Most lines of a program's output that are shown, all episodes together."""
_LONGEST_LINE = 300
# Bytes of a result's line: 14 for a character, which is written as JSON twice.
_MOST_RESULT = 16 * fork_server.MOST_ANSWER
_log = logging.getLogger("flowzoo")


class ProgramForks:
    """The forks of one program; the server is started by the first run, and again if it ends."""

    def __init__(self, function: FunctionSetting) -> None:
        self.function = function
        self.modules = [*getattr(function, "modules", ())]
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._results: dict[int, asyncio.Future[tuple[int, str]]] = {}
        self._count = self._lines = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, run: ProgramRun, base_url: str) -> None:
        """Run the function in a fork to its end."""
        self._count += 1
        number = self._count
        loop = asyncio.get_running_loop()
        result = self._results[number] = loop.create_future()
        try:
            async with self._starting:
                process = self._process = self._process or await self._start(base_url)
        except (OSError, TypeError, UsageError) as error:
            self._results.pop(number, None)
            run.finish("crash", f"{sys.executable} cannot be started: {error}")
            return
        assert process.stdin is not None
        server = process.stdin

        def tell(job: dict[str, Any]) -> None:
            if not result.done():
                server.write(json.dumps(job).encode() + b"\n")

        tell({
            "run": number, "given": arguments(self.function.function, run, base_url),
            "base_url": base_url, "key": run.key,
        })  # fmt: skip
        run.begin = partial(tell, {"warm": True})
        run.stop = partial(loop.call_soon_threadsafe, tell, {"stop": number})
        if run.end is not None:  # the run ended during the start
            run.stop()
        status, text = await result
        run.stop = lambda: None
        await ends_noticed()
        if text:
            kind, reason, answer = json.loads(text)
        else:
            how = f"exit status {status}" if status >= 0 else f"signal {-status}"
            kind, reason, answer = "crash", f"its process ended by {how}", None
        run.finish(kind, clean(reason, base_url, run.key), answer)

    async def _start(self, base_url: str) -> asyncio.subprocess.Process:
        where, _, name = self.function.name.rpartition(":")
        settings = {"where": where, "name": name, "path": sys.path, "modules": self.modules}
        line = json.dumps(settings).encode() + b"\n"
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *keeper_command([sys.executable, fork_server.__file__]),
            stdin=pipe, stdout=pipe, stderr=pipe, limit=_MOST_RESULT, start_new_session=True,
            env=os.environ | client_variables(base_url, "flowzoo"),
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(line)
        for work in (self._listen(process), self._show(process)):
            task = asyncio.get_running_loop().create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return process

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            row = json.loads(line)
            self._results.pop(row["run"]).set_result((row["status"], row["result"]))
        status = await process.wait()
        self._process, left, self._results = None, self._results, {}
        for result in left.values():
            result.set_result((status, ""))

    async def _show(self, process: asyncio.subprocess.Process) -> None:
        # The first lines of what programs print: a library may print some in every episode.
        assert process.stderr is not None
        text = b""
        while chunk := await process.stderr.read(2**16):
            if self._lines > MOST_LINES:
                continue
            *lines, text = (text + chunk).split(b"\n")
            text = text[:_LONGEST_LINE]
            for line in lines[: MOST_LINES - self._lines]:
                message = line[:_LONGEST_LINE].decode("utf-8", "replace").rstrip()
                _log.warning("agent program: %s", message)
            self._lines += len(lines)
            if self._lines > MOST_LINES:
                _log.warning("agent program: further lines that it prints are not shown")
