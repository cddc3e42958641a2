"""OpenAI Agents SDK: handoffs, which are calls of tools."""

from __future__ import annotations

from typing import Any

from agent_rows import AgentExample, call_of
from rows import report


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

if __name__ == "__main__":
    report("OpenAI Agents SDK", ["openai-agents"], EXAMPLE.rows(), EXAMPLE.figures)
