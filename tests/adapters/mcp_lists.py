"""A server on stdio whose list of tools is wrong in the way that its argument says."""

import asyncio
import itertools
import os
import signal
import sys
from typing import Any

from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool

PAGES = itertools.count(1)


def tools(*names: str) -> list[Tool]:
    return [Tool(name=name, input_schema={"type": "object"}) for name in names]


async def page(context: Any, params: Any) -> ListToolsResult:
    number = next(PAGES)
    kind = sys.argv[1]
    if kind == "daemon":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
            signal.pause()
    if kind == "slow":
        await asyncio.sleep(0.5)
    if kind in ("slow", "empty"):
        return ListToolsResult(tools=[], next_cursor=f"page {number}")
    if kind == "many":
        return ListToolsResult(tools=tools(f"t{number}", f"u{number}"), next_cursor=f"{number}")
    if kind == "repeated":
        return ListToolsResult(tools=tools(f"t{number}"), next_cursor="again")
    if kind == "daemon":
        return ListToolsResult(tools=tools("variables"))
    if kind == "twins":
        return ListToolsResult(tools=tools("same"), next_cursor="2" if number == 1 else None)
    full = ListToolsResult(tools=tools(f"t{number}"), next_cursor=f"{number}")
    return full if number < 128 else ListToolsResult(tools=tools(f"t{number}"))


async def use(context: Any, params: Any) -> CallToolResult:
    if params.name == "variables":
        text = str(dict(os.environ))
        return CallToolResult(content=[TextContent(type="text", text=text)])
    return CallToolResult(content=[TextContent(type="text", text="x" * 2**21)])


async def main() -> None:
    server = Server("lists", on_list_tools=page, on_call_tool=use)
    async with stdio_server() as streams:
        await server.run(*streams, server.create_initialization_options())


asyncio.run(main())
