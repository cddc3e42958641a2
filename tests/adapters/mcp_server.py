"""A server of tools on stdio, for the tests."""

import os

from mcp.server.mcpserver import MCPServer

server = MCPServer("test")


@server.tool()
def multiply(a: int, b: int) -> str:
    """Multiply two numbers."""
    return str(a * b)


@server.tool()
def fail(reason: str) -> str:
    """Fail."""
    raise ValueError(reason)


@server.tool()
def leave() -> str:
    """End the server."""
    os._exit(3)


if __name__ == "__main__":
    server.run()
