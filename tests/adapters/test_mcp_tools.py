"""Tools of a real MCP server on stdio, in a workflow."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from processes import commands_with, wait_for

pytest.importorskip("mcp", reason="needs flowzoo[mcp]")

from flowzoo.adapters.mcp_tools import McpServerError, McpTools, close_servers
from flowzoo.envs import Ask, Episode, Outcome, Problem, UseTool, Workflow, make_workflow
from flowzoo.envs.testing import advance
from flowzoo.envs.tools import ToolCall, call_text
from flowzoo.errors import UsageError

SOURCE = McpTools((sys.executable, str(Path(__file__).with_name("mcp_server.py"))), 20.0)


@pytest.fixture(autouse=True, scope="module")
def _ended():
    yield
    close_servers()


class Multiply(Workflow):
    name = "multiply_v0"
    roles: ClassVar = {"solver": 1}
    tool_roles: ClassVar = ("solver",)

    def play(self, problem):
        tools = SOURCE.tools()
        chat = [{"role": "user", "content": problem.text}]
        reply = yield Ask("solver_0", chat, self.task.answer, tools=tools)
        if reply.tool_calls:
            result = yield UseTool(reply.tool_calls[0], SOURCE)
            chat += [reply.message(), reply.tool_calls[0].result(result.text)]
            reply = yield Ask("solver_0", chat, self.task.answer)
        return Outcome(reply.strict)


def call(name, **arguments):
    return call_text(json.dumps({"name": name, "arguments": arguments}))


def test_a_workflow_uses_the_tools_of_a_server():
    workflow = Multiply(make_workflow("single_v0").task)
    episode = Episode(workflow, Problem("math", "test", 0, 0, "Compute 6*7.", "42"))
    assert [tool.name for tool in episode.waiting[0].tools] == ["multiply", "fail", "leave"]
    episode.reply("solver_0", call("multiply", a=6, b=7))
    advance(episode)
    assert episode.waiting[0].messages[-1]["content"] == "42"
    close_servers()
    twin = pickle.loads(pickle.dumps(episode))
    assert twin.transcript() == episode.transcript()


def test_wrong_arguments_never_reach_the_server():
    workflow = Multiply(make_workflow("single_v0").task)
    episode = Episode(workflow, Problem("math", "test", 0, 0, "Compute 6*7.", "42"))
    episode.reply("solver_0", call("multiply", a="6", b=7))
    advance(episode)
    assert episode.turns[0].reply.fault == (
        "multiply: arguments.a must be of type integer, got str"
    )


def test_the_error_of_a_tool_is_its_result():
    (text,) = SOURCE.use([ToolCall("0", "fail", {"reason": "no luck"})])
    assert text.startswith("Error: ")
    (text,) = SOURCE.use([ToolCall("0", "unheard", {})])
    assert text.startswith("Error: ")


def test_a_server_that_ends_is_an_error():
    with pytest.raises(McpServerError, match="ended"):
        McpTools(SOURCE.command, 5.0).use([ToolCall("0", "leave", {})])


def test_a_server_that_does_not_start_is_an_error():
    with pytest.raises(McpServerError, match="did not start"):
        McpTools(("/nowhere/server",)).tools()


def test_the_next_call_starts_a_server_again(tmp_path):
    file = tmp_path / "server.py"
    source = McpTools((sys.executable, str(file)), 20.0)
    with pytest.raises(McpServerError, match="did not start"):
        source.tools()
    file.write_text(Path(SOURCE.command[1]).read_text())
    assert [tool.name for tool in source.tools()] == ["multiply", "fail", "leave"]
    with pytest.raises(McpServerError, match="has ended"):
        source.use([ToolCall("0", "leave", {})])
    assert source.use([ToolCall("0", "multiply", {"a": 2, "b": 3})]) == ["6"]


def test_settings_are_checked():
    with pytest.raises(UsageError, match="a tuple of words"):
        McpTools("python server.py")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="more than 0"):
        McpTools(("python",), 0)


def lists(kind: str, seconds: float = 20.0) -> McpTools:
    return McpTools((sys.executable, str(Path(__file__).with_name("mcp_lists.py")), kind), seconds)


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("repeated", "repeats a cursor"),
        ("empty", "on more than 128 pages"),
        ("many", "more than 128 tools"),
        ("twins", "two tools of one name, 'same'"),
    ],
)
def test_a_list_without_an_end_is_refused(kind, fault):
    with pytest.raises(McpServerError, match=fault) as caught:
        lists(kind).tools()
    assert "\n" not in str(caught.value)


def test_the_time_of_a_list_is_bounded_as_a_whole():
    source = lists("slow", 2.0)
    with pytest.raises(McpServerError, match="gave no answer in 2 s"):
        source.tools()


def test_as_many_tools_as_allowed_are_listed():
    source = lists("full")
    assert [tool.name for tool in source.tools()] == [f"t{n}" for n in range(1, 129)]
    (text,) = source.use([ToolCall("0", "t1", {})])
    assert text == "Error: the result has 2,097,152 characters, more than 1,048,576."


def test_a_message_without_an_end_ends_the_server():
    source = "import os\nwhile True: os.write(1, bytes(2**20))"
    with pytest.raises(McpServerError, match="Connection closed"):
        McpTools((sys.executable, "-S", "-c", source)).tools()


def test_a_server_and_its_daemon_end_with_flowzoo_and_get_no_secrets(tmp_path):
    file = tmp_path / "owner.py"
    file.write_text(OWNER.format(root=str(Path(__file__).with_name("mcp_lists.py"))))
    environment = {**os.environ, "HF_TOKEN": "hf_a_secret_of_mine", "MY_KEY": "named"}
    command = [sys.executable, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as owner:
        assert owner.stdout is not None
        token, variables = owner.stdout.readline().split(), owner.stdout.readline()
        assert "hf_a_secret" not in variables
        assert "'MY_KEY': 'named'" in variables
        assert len(commands_with(token[0])) >= 2
        owner.kill()
    wait_for(lambda: not commands_with(token[0]))


OWNER = """
import secrets, sys, time
from flowzoo.adapters.mcp_tools import McpTools
from flowzoo.envs.tools import ToolCall
token = secrets.token_hex(8)
source = McpTools((sys.executable, {root!r}, "daemon", token), 20.0, ("MY_KEY",))
source.tools()
print(token, flush=True)
print(source.use([ToolCall("0", "variables", {{}})])[0], flush=True)
time.sleep(60)
"""
