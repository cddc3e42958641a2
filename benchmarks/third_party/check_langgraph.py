"""LangGraph: a graph with a loop, its models asked by langchain-openai."""

from __future__ import annotations

from functools import partial
from typing import Any

from agent_rows import AgentExample, called, played
from langchain_core.messages import AIMessageChunk
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from rows import Row, report

from flowzoo.adapters.torchrl import pettingzoo_env
from flowzoo.envs import make_env


def looped(episodes: list[dict[str, Any]]) -> None:
    """A rejected draft comes back to the solver with its review, an accepted one ends the graph."""
    lengths = {len(episode["calls"]) for episode in episodes}
    assert lengths == {2, 4, 6}, lengths
    for episode in episodes:
        *drafts, last = episode["calls"][1::2]
        assert all("Incorrect" in call["reply"] for call in drafts)
        assert "Incorrect" not in last["reply"] or len(drafts) == 2


EXAMPLE = AgentExample("langgraph_review.py", looped)


class Sum(BaseModel):
    """A sum of two numbers."""

    first: int
    second: int


def model(base_url: str, api_key: str) -> ChatOpenAI:
    """The model of an agent."""
    return ChatOpenAI(model="a", base_url=base_url, api_key=api_key, temperature=0)


def typed(**options: Any) -> None:
    """Output of a type."""

    def solve(problem: str, base_url: str, api_key: str) -> str:
        structured = model(base_url, api_key).with_structured_output(Sum, **options)
        return repr(structured.invoke(problem))

    assert played(solve, called("Sum", first=1, second=2)) == "Sum(first=1, second=2)"


def streamed() -> None:
    """Two calls in the chunks of a stream."""

    def solve(problem: str, base_url: str, api_key: str) -> str:
        bound = model(base_url, api_key).bind_tools([Sum])
        whole: Any = AIMessageChunk("")
        for chunk in bound.stream(problem):
            whole += chunk
        return str([whole.text, *(call["args"] for call in whole.tool_calls)])

    replies = "I add." + called("Sum", first=1, second=2) + called("Sum", first=3, second=4)
    calls = "{'first': 1, 'second': 2}, {'first': 3, 'second': 4}"
    assert played(solve, replies) == f"['I add.', {calls}]"


def torchrl() -> None:
    """An episode of random replies through TorchRL's wrapper."""
    episode = pettingzoo_env(make_env(EXAMPLE.workflow), seed=0).rollout(12)
    assert episode["next", "solver", "reward"].shape[1:] == (1, 1)
    assert episode["solver", "mask"].flatten().tolist()[:2] == [True, False]


if __name__ == "__main__":
    rows = [
        *EXAMPLE.rows(),
        Row("the program in TorchRL's `PettingZooWrapper`", torchrl, "`pettingzoo_env`"),
        Row("`bind_tools`, streamed", streamed),
        Row('`with_structured_output(method="function_calling")`',
            partial(typed, method="function_calling")),
        Row("`with_structured_output`", typed, error="`response_format` is not supported",
            why="no engine is told a format; `function_calling` works"),
    ]  # fmt: skip
    report("LangGraph", ["langgraph", "langchain-openai", "torchrl"], rows, EXAMPLE.figures)
