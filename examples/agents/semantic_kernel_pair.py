"""Semantic Kernel: two chat completion agents.

flowzoo train --program examples/agents/semantic_kernel_pair.py:solve --options at_once=1 --steps 2
"""

import os

from openai import AsyncOpenAI
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion

ROLES = {"solver": 1, "reviewer": 1}
client = AsyncOpenAI(base_url=os.environ.get("OPENAI_BASE_URL"))
solver, reviewer = (
    ChatCompletionAgent(
        service=OpenAIChatCompletion(ai_model_id=name, async_client=client), name=name
    )
    for name in ROLES
)


async def solve(problem: str) -> str:
    """The reviewer's answer."""
    draft = await solver.get_response(messages=problem)
    return str(await reviewer.get_response(messages=f"{problem}\n\n{draft}"))
