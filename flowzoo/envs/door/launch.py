"""Start of agent programs: named functions in forks, other functions in threads, commands."""

import asyncio
import contextlib
import inspect
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from flowzoo.envs.door import fork_server
from flowzoo.envs.door.run import ProgramRun, ends_noticed
from flowzoo.errors import UsageError
from flowzoo.functions import FunctionSetting
from flowzoo.provenance import redact
from flowzoo.sandbox.children import inherited, keeper_command

MOST_OUTPUT = 2**20
"""Most bytes of a command's output."""
MOST_THREADS = 1024
"""Most threads of functions whose episodes have ended; threads cannot be killed."""
_log = logging.getLogger("flowzoo")
_LONGEST = 500  # characters of a reason
_NAMES = "base_url", "api_key", "key"


class StrayEnds(logging.Filter):
    """Says once that programs leave clients open, which fail to close in another episode's loop.

    A client that is collected in another loop starts a task there, which asyncio reports in tens of
    lines. Only function objects share a process, so only theirs can do so.
    """

    is_told = False

    def filter(self, record: logging.LogRecord) -> bool:
        """True for records about anything else."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, RuntimeError) or str(error) != "Event loop is closed":
            return True
        if not self.is_told:
            self.is_told = True
            _log.warning(
                "an agent program leaves clients open, which other episodes collect: close them, "
                "or name the function (`file.py:solve`), which gives each episode its own process"
            )
        return False


class ProgramThreads:
    """Threads of functions; a bounded number may outlive their episodes."""

    def __init__(self) -> None:
        self._runs: set[ProgramRun] = set()  # runs with a live thread
        logging.getLogger("asyncio").addFilter(StrayEnds())

    def start(self, run: ProgramRun, base_url: str) -> None:
        """Run a function in a thread; at the limit its episode ends instead."""
        left = len(self._runs) >= MOST_THREADS and sum(of.end is not None for of in self._runs)
        if left >= MOST_THREADS:
            run.finish(
                "threads",
                f"functions of {left:,} ended episodes are still running, so it was not started: "
                "set a timeout in their clients, or use a command, which can be killed",
            )
            return
        self._runs.add(run)
        args = (run, base_url, self._finish, asyncio.get_running_loop())
        threading.Thread(target=_call, args=args, name="agent program", daemon=True).start()

    async def _finish(self, run: ProgramRun, *end: Any) -> None:
        self._runs.discard(run)
        await ends_noticed()  # the program may have left a reply unread just now
        run.finish(*end)


def _call(
    run: ProgramRun,
    base_url: str,
    ended: Callable[..., Coroutine[Any, Any, None]],
    loop: asyncio.AbstractEventLoop,
) -> None:
    # In the program's thread.
    function = run.program.run
    status, reason, answer = fork_server.outcome(
        lambda: function(*arguments(function, run, base_url))
    )
    end = status, clean(reason, base_url, run.key), answer
    asyncio.run_coroutine_threadsafe(ended(run, *end), loop)


def arguments(function: Callable[..., Any], run: ProgramRun, base_url: str) -> list[str]:
    """The arguments of a run that a function takes: problem, base URL and key, or the first.

    A parameter that has a default is the program's own, unless its name is of one of these.
    """
    given = [run.question, base_url, run.key]
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # of a builtin
        return given
    count = 0
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            return given
        is_own = parameter.default is not parameter.empty and parameter.name not in _NAMES
        is_named = parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD)
        if is_named or (count and is_own):
            break
        count += 1
    return given[:count]


def clean(reason: str, base_url: str, key: str) -> str:
    """A reason as one line, without secrets and parts that differ between runs."""
    text = redact(reason.replace(key, "KEY").replace(base_url, "URL"))
    text = " ".join(text.split())
    text = "".join(character for character in text if character.isprintable())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def client_variables(base_url: str, key: str) -> dict[str, str]:
    """Environment variables that OpenAI clients read."""
    skipped = ",".join(filter(None, (os.environ.get("NO_PROXY"), "127.0.0.1")))
    proxies = {"NO_PROXY": skipped, "no_proxy": skipped}
    addresses = dict.fromkeys(("OPENAI_BASE_URL", "OPENAI_API_BASE"), base_url)
    return {**addresses, "OPENAI_API_KEY": key, **proxies}


async def run_command(run: ProgramRun, base_url: str) -> None:
    """Run a command to its end."""
    command: tuple[str, ...] = run.program.run
    environment = inherited(run.program.variables) | client_variables(base_url, run.key)
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *keeper_command(command), stdin=pipe, stdout=pipe, stderr=pipe, env=environment,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        run.finish("crash", f"{command[0]} cannot be started: {error.strerror}")
        return

    def stop() -> None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()

    run.stop = stop
    if run.end is not None:  # the run ended during the start
        run.stop()
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    outputs = asyncio.gather(_read(run, process.stdout), _tail(process.stderr))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may not read its input
        process.stdin.write(run.question.encode("utf-8", "replace"))
        await process.stdin.drain()
        process.stdin.close()
    output, errors = await outputs
    status = await process.wait()  # nothing that the command started is left
    run.stop = lambda: None  # the id may be reused by another process
    await ends_noticed()
    if status == 0:
        run.finish("answer", "", output.decode("utf-8", "replace").strip() or None)
        return
    kind = f"exit status {status}" if status > 0 else f"signal {-status}"
    last = errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
    if last.startswith(f"{command[0]} cannot be started: "):  # as its keeper says
        kind, last = last, ""
    run.finish("crash", clean(f"{kind}: {last}" if last else kind, base_url, run.key))


async def _read(run: ProgramRun, stream: asyncio.StreamReader) -> bytes:
    output = bytearray()
    while chunk := await stream.read(2**16):
        output += chunk
        if len(output) > MOST_OUTPUT:
            run.finish("output", f"it printed more than {MOST_OUTPUT:,} bytes")
            return b""
    return bytes(output)


async def _tail(stream: asyncio.StreamReader) -> bytes:
    output = b""
    while chunk := await stream.read(2**16):
        output = (output + chunk)[-4000:]
    return output


MOST_LINES = 5
"""Most lines of a program's output that are shown, all episodes together."""
_LONGEST_LINE = 300
# Bytes of a result's line: 14 for a character, which is written as JSON twice.
_MOST_RESULT = 16 * fork_server.MOST_ANSWER


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
