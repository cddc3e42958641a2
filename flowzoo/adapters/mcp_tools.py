"""Tools of Model Context Protocol servers, which run as commands and speak over stdio.

    from flowzoo.adapters.mcp_tools import McpTools

    source = McpTools(("python", "server.py"))
    reply = yield Ask("solver_0", chat, parse, tools=source.tools())
    result = yield UseTool(reply.tool_calls[0], source)    # result.text

The server runs with the user's rights, outside the sandbox. Of secret variables it inherits only
`variables`, and all that it starts ends with it. Several episodes may ask it at the same time, so a
result must depend on its call alone.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from mcp import ClientSession, MCPError, StdioServerParameters, stdio_client
from mcp.types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
)

from flowzoo.envs.tools import Tool, ToolCall
from flowzoo.errors import FlowzooError, UsageError
from flowzoo.sandbox.children import inherited, keeper_command
from flowzoo.waits import Wait, WaitKind

MOST_TOOLS = 128
"""Most tools of a server, and most pages that it may list them on."""
MOST_RESULT = 2**20
"""Most characters of a result."""
MOST_MESSAGE = 2**22
"""Most bytes of a message of a server, which is a line; a longer one ends it."""
_START_S = 30.0
_ANSWERS = WaitKind("the call fails, and the run with it", 10.0)
T = TypeVar("T")


class McpServerError(FlowzooError, RuntimeError):
    """A server could not be started, did not answer in time, or ended."""


def _fault(command: Sequence[str], text: str) -> McpServerError:
    return McpServerError(f"the MCP server {' '.join(command)} {text}")


class _Server:
    """A running server: a session on an event loop in a thread."""

    def __init__(self, command: tuple[str, ...], variables: tuple[str, ...]) -> None:
        self._command, self._variables = command, variables
        self.over = False
        """True if it did not start or has ended; the next call starts another one."""
        self._loop = asyncio.new_event_loop()
        self._session: Future[ClientSession] = Future()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="flowzoo-mcp", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            if not self._session.done():
                self._session.set_exception(error)

    async def _serve(self) -> None:
        program, *args = keeper_command(self._command, MOST_MESSAGE)
        variables = inherited(self._variables)
        server = StdioServerParameters(command=program, args=args, env=variables)
        async with stdio_client(server) as streams, ClientSession(*streams) as session:
            await asyncio.wait_for(session.initialize(), _START_S)
            self._session.set_result(session)
            await self._end.wait()

    def session(self) -> ClientSession:
        """The session, once the server has answered."""
        try:
            with self._waiting(_START_S):
                return self._session.result(2 * _START_S)
        except Exception as error:
            self.over = True
            raise _fault(self._command, f"did not start: {error!r:.300}") from error

    def wait(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """The result of a coroutine on the session's loop, which is canceled when it is late."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            with self._waiting(seconds):
                return future.result(seconds)
        except MCPError as error:
            if error.code != CONNECTION_CLOSED:
                raise
            self.over = True
            raise _fault(self._command, f"has ended: {error}") from error
        except Exception as error:
            late = f"gave no answer in {seconds:g} s, or ended: {error!r:.300}"
            raise _fault(self._command, late) from error
        finally:
            future.cancel()

    def _waiting(self, seconds: float) -> AbstractContextManager[Wait]:
        name = f"the MCP server {' '.join(self._command)}"
        return _ANSWERS.wait(name, name, limit_s=seconds)

    def close(self) -> None:
        """End the server."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)


_servers: dict[tuple[int, tuple[str, ...], tuple[str, ...]], _Server] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class McpTools:
    """The tools of one server. Copies in other processes start servers for themselves."""

    command: tuple[str, ...]
    """Words of the command that starts the server."""
    seconds: float = 30.0
    """Most seconds of a call, and of the list of tools."""
    variables: tuple[str, ...] = ()
    """Names of environment variables that the server gets too, such as the one with its key."""

    def __post_init__(self) -> None:
        if not self.command or isinstance(self.command, str):
            raise UsageError(f"command: expected a tuple of words, got {self.command!r:.200}")
        if not self.seconds > 0:
            raise UsageError(f"seconds: expected more than 0, got {self.seconds!r}")

    def tools(self) -> tuple[Tool, ...]:
        """The server's tools, in its order.

        Raises:
            McpServerError: the server cannot be started, gives no answer, or its list has no end,
                more than `MOST_TOOLS` tools, or two of one name.
            UsageError: a tool whose arguments cannot be checked.
        """
        server = self._server()
        listed = server.wait(_list_tools(server.session()), self.seconds)
        fault = _list_fault(listed)
        if fault:
            raise _fault(self.command, fault)
        return tuple(Tool(t.name, t.description or "", t.input_schema) for t in listed.tools)

    def use(self, calls: Sequence[ToolCall]) -> list[str]:
        """The texts of the results; an error that a tool reports starts with `Error:`.

        Raises:
            McpServerError: the server ended, failed, or gave no answer in time.
        """
        server = self._server()
        session = server.session()
        return [self._call_tool(server, session, call) for call in calls]

    def _call_tool(self, server: _Server, session: ClientSession, call: ToolCall) -> str:
        try:
            result = server.wait(session.call_tool(call.name, dict(call.arguments)), self.seconds)
        except MCPError as error:
            if error.code in (INVALID_PARAMS, METHOD_NOT_FOUND):  # of the call, not the server
                return f"Error: {error}"
            raise _fault(self.command, f"failed in {call.name}: {error}") from error
        parts = [part.text for part in result.content if isinstance(part, TextContent)]
        text = f"{'Error: ' if result.is_error else ''}{chr(10).join(parts)}"
        if len(text) > MOST_RESULT:
            return f"Error: the result has {len(text):,} characters, more than {MOST_RESULT:,}."
        return text

    def _server(self) -> _Server:
        key = os.getpid(), tuple(self.command), self.variables
        with _lock:
            if key in _servers and _servers[key].over:
                _servers.pop(key).close()
            if key not in _servers:
                _servers[key] = _Server(self.command, self.variables)
            return _servers[key]


async def _list_tools(session: ClientSession) -> ListToolsResult:
    # All pages as one, with a cursor if they did not come to an end.
    listed, seen = await session.list_tools(), set[str]()
    while (cursor := listed.next_cursor) and cursor not in seen and len(seen) < MOST_TOOLS:
        seen.add(cursor)
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        listed = ListToolsResult(
            tools=[*listed.tools, *page.tools][: MOST_TOOLS + 1], next_cursor=page.next_cursor
        )
    return listed


def _list_fault(listed: ListToolsResult) -> str:
    names = [tool.name for tool in listed.tools]
    if len(names) > MOST_TOOLS:
        return f"has more than {MOST_TOOLS} tools: offer fewer"
    if listed.next_cursor:
        return f"repeats a cursor, or lists its tools on more than {MOST_TOOLS} pages"
    double = sorted({name for name in names if names.count(name) > 1})
    return f"has two tools of one name, {double[0]!r:.80}: rename one" if double else ""


@atexit.register
def close_servers() -> None:
    """End all servers of this process; a later call starts them again."""
    with _lock:
        for key in [key for key in _servers if key[0] == os.getpid()]:
            _servers.pop(key).close()
