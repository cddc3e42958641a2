"""Pydantic AI: output of a type, which is a call of a tool that the request requires."""

from __future__ import annotations

import json
import re
from typing import Any

from agent_rows import AgentExample, call_of
from rows import report

from flowzoo.reward import score_batch


def is_right(text: str) -> bool:
    """True if the box after a sum has its value."""
    problem, _, answer = text.partition("\n\nAnswer:\n")
    (value,) = re.findall(r"Compute (.*)\.\n", problem)
    return score_batch([answer], [value]).statuses == ["equal"]


def judge(body: dict[str, Any]) -> dict[str, Any]:
    """The reviewer's expert."""
    right = is_right(body["messages"][-1]["content"])
    return call_of("final_result", verdict="right" if right else "wrong")


def reviewed(episodes: list[dict[str, Any]]) -> None:
    """A rejected answer is given again, at most three times; every review is a call."""
    assert {len(episode["calls"]) for episode in episodes} == {2, 4, 6}
    for episode in episodes:
        *rejections, last = episode["calls"][1::2]
        assert all('"wrong"' in call["reply"] for call in rejections)
        assert '"right"' in last["reply"] or len(rejections) == 2
        assert (episode["score"] == 1) == ('"right"' in last["reply"])
        assert episode["facts"]["uncalled"] == 0
        (tool,) = last["tools"]
        assert json.dumps(tool).count('"right", "wrong"') == 1


EXAMPLE = AgentExample("pydantic_ai_verdict.py", reviewed, judge, ("reviewer",))

if __name__ == "__main__":
    report("Pydantic AI", ["pydantic-ai-slim"], EXAMPLE.rows(), EXAMPLE.figures)
