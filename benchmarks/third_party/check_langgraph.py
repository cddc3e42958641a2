"""LangGraph: a graph with a loop, its models asked by langchain-openai."""

from __future__ import annotations

from typing import Any

from agent_rows import AgentExample
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


def torchrl() -> None:
    """An episode of random replies through TorchRL's wrapper."""
    episode = pettingzoo_env(make_env(EXAMPLE.workflow), seed=0).rollout(12)
    assert episode["next", "solver", "reward"].shape[1:] == (1, 1)
    assert episode["solver", "mask"].flatten().tolist()[:2] == [True, False]


if __name__ == "__main__":
    torchrl_row = Row("the program in TorchRL's `PettingZooWrapper`", torchrl, "`pettingzoo_env`")
    packages = ["langgraph", "langchain-openai", "torchrl"]
    report("LangGraph", packages, [*EXAMPLE.rows(), torchrl_row], EXAMPLE.figures)
