"""OpenAI Agents SDK: handoffs, which are calls of tools."""

from __future__ import annotations

from typing import Any

from agent_rows import AgentExample, call_of, called, played
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from rows import Row, report


def specialist(problem: str) -> str:
    """The agent for a problem."""
    return "adder" if "+" in problem else "subtracter"


def hand_off(body: dict[str, Any]) -> dict[str, Any]:
    """The triage agent's expert."""
    return call_of(f"transfer_to_{specialist(body['messages'][-1]['content'])}")


def routed(episodes: list[dict[str, Any]]) -> None:
    """A specialist sees the problem alone, and its reply is the answer."""
    for episode in episodes:
        triage, answer = episode["calls"]
        tools = [tool["function"]["name"] for tool in triage["tools"]]
        assert (triage["role"], tools) == (
            "triage",
            ["transfer_to_adder", "transfer_to_subtracter"],
        )
        assert answer["role"] == specialist(episode["text"])
        assert answer["messages"] == triage["messages"][1:]
        assert not answer.get("tools")


EXAMPLE = AgentExample("openai_agents_triage.py", routed, hand_off, ("triage",))


@function_tool
def add(first: int, second: int) -> int:
    """The sum."""
    return first + second


async def tooled(problem: str, base_url: str, api_key: str) -> str:
    """An agent with a function, streamed, and one that asks another agent by a tool."""
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        a, b, c = (OpenAIChatCompletionsModel(name, client) for name in "abc")
        run = Runner.run_streamed(Agent("adder", model=a, tools=[add]), problem)
        async for _ in run.stream_events():
            pass
        inner = Agent("inner", model=c)
        once = ModelSettings(tool_choice="required", parallel_tool_calls=False)
        tools = [inner.as_tool("ask", "Ask an expert.")]
        outer = Agent("outer", model=b, tools=tools, model_settings=once)
        result = await Runner.run(outer, str(run.final_output))
    return str(result.final_output)


async def typed(problem: str, base_url: str, api_key: str) -> str:
    """Output of a type."""
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        agent = Agent("a", model=OpenAIChatCompletionsModel("a", client), output_type=list[int])
        return str((await Runner.run(agent, problem)).final_output)


async def responding(problem: str, base_url: str, api_key: str) -> str:
    """The other API of OpenAI."""
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        agent = Agent("a", model=OpenAIResponsesModel("a", client))
        return str((await Runner.run(agent, problem)).final_output)


def tools() -> None:
    """Functions, agents as tools, streams and required calls."""
    calls = called("add", first=1, second=2), "3", called("ask", input="3"), "yes", "three"
    assert played(tooled, *calls) == "three"


def structured() -> None:
    """JSON of a type."""
    assert played(typed, '{"response": [1, 2]}') == "[1, 2]"


def responses() -> None:
    """A reply of the other API."""
    assert played(responding, "yes") == "yes"


if __name__ == "__main__":
    set_tracing_disabled(True)
    rows = [
        *EXAMPLE.rows(),
        Row("`function_tool`, `run_streamed`, `as_tool`, `ModelSettings`", tools),
        Row("`output_type`", structured),
        Row("`OpenAIResponsesModel`", responses),
    ]  # fmt: skip
    report("OpenAI Agents SDK", ["openai-agents"], rows, EXAMPLE.figures)
