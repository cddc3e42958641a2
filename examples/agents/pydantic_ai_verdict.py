"""Pydantic AI: a reviewer whose output is a typed verdict, which the model gives by a tool call.

flowzoo train --program examples/agents/pydantic_ai_verdict.py:solve --model MODEL \
    --options at_once=1 --sharing isolated --steps 2
"""

from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, UnexpectedModelBehavior
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

ROLES = {"solver": 1, "reviewer": 1}


class Review(BaseModel):
    """A verdict on an answer."""

    verdict: Literal["right", "wrong"]


async def solve(problem: str, base_url: str, api_key: str) -> str:
    """The first of three answers that the reviewer does not reject, or the last."""
    provider = OpenAIProvider(base_url=base_url, api_key=api_key)
    solver, reviewer = (Agent(OpenAIChatModel(name, provider=provider)) for name in ROLES)
    for _ in range(3):
        answer = (await solver.run(problem)).output
        try:
            review = await reviewer.run(f"{problem}\n\nAnswer:\n{answer}", output_type=Review)
        except UnexpectedModelBehavior:  # no verdict, and none when asked again
            break
        if review.output.verdict == "right":
            break
    return answer
