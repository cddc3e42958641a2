"""A served workflow as a tool of an MCP client, which is our own."""

import sys

import pytest

pytest.importorskip("mcp", reason="needs flowzoo[mcp]")

from flowzoo.adapters.mcp_tools import McpTools, close_servers
from flowzoo.envs.tools import ToolCall


def test_a_workflow_is_a_tool_that_answers_questions(monkeypatch):
    monkeypatch.setattr("flowzoo.adapters.mcp_tools._START_S", 300.0)  # it loads a model
    words = "-m", "flowzoo.cli", "serve", "voting", "--mcp", "--temperature", "0"
    source = McpTools((sys.executable, *words), 300.0)
    try:
        (tool,) = source.tools()
        assert tool.name == "voting_v0"
        arguments = {"question": "Compute 50-4*8."}, {"question": ""}, {"question": 3}, {}
        calls = [ToolCall("1", name, row) for name in ("voting_v0", "x") for row in arguments]
        answers = source.use(calls)
    finally:
        close_servers()
    assert answers[0] == "18"
    assert answers[1].startswith("Error: The last message must be the user's")
    assert all(answer.startswith("Error: `messages[0].content`") for answer in answers[2:4])
    assert all("does not exist" in answer for answer in answers[4:])
