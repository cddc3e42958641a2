"""A served workflow as a tool of Model Context Protocol clients, over stdio: `flowzoo serve --mcp`.

The tool has the workflow's name and takes a `question`. A call is a request like one to
the OpenAI API, in the same line and with the same limits.
"""

import asyncio
import json
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)

from flowzoo.agents.serving.questions import NO_ANSWER, TeamAnswer
from flowzoo.agents.serving.service import TeamService
from flowzoo.envs.door.wire import read_request
from flowzoo.envs.text import encodable
from flowzoo.front.refusal import RefusalError

_QUESTION = {
    "type": "object",
    "properties": {"question": {"type": "string"}},
    "required": ["question"],
}


async def answer_call(service: TeamService, params: CallToolRequestParams) -> CallToolResult:
    """The result of a call; errors are results that say so."""
    question = (params.arguments or {}).get("question")
    messages = [{"role": "user", "content": question}]
    departure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    text, is_error = NO_ANSWER, True
    try:
        raw = json.dumps({"model": params.name, "messages": messages}).encode()
        with await service.begin(read_request(raw, "chat", service.surface), departure) as pending:
            async for item in pending.news():
                if (
                    item is not None
                    and isinstance(item[1], TeamAnswer)
                    and item[1].text is not None
                ):
                    text, is_error = encodable(item[1].text), False
    except RefusalError as error:
        text = str(error)
    finally:
        departure.cancel()
    return CallToolResult(content=[TextContent(text=text)], is_error=is_error)


async def serve_tool(service: TeamService) -> None:
    """Serve on standard input and output until the input ends."""
    name = service.workflow.name

    async def list_tools(context: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        description = f"Ask {name}: {len(service.workflow.agents)} agents answer a question."
        tool = Tool(name=name, description=description, input_schema=_QUESTION)
        return ListToolsResult(tools=[tool])

    async def call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
        return await answer_call(service, params)

    server = Server("flowzoo", on_list_tools=list_tools, on_call_tool=call_tool)
    engine = asyncio.create_task(service.engine.serve())

    def end(_: object) -> None:
        service.end()
        service.refuse_open()

    engine.add_done_callback(end)
    try:
        async with stdio_server() as streams:
            await server.run(*streams, server.create_initialization_options())
    finally:
        end(None)
        engine.cancel()
        results = await asyncio.gather(engine, return_exceptions=True)
    if isinstance(results[0], Exception):
        raise results[0]
