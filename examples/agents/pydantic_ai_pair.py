"""Pydantic AI: two agents with models of OpenAI's chat API.

flowzoo train --program examples/agents/pydantic_ai_pair.py:solve --options at_once=1 --steps 2
"""

from pydantic_ai import Agent

ROLES = {"solver": 1, "reviewer": 1}
solver = Agent("openai-chat:solver")
reviewer = Agent("openai-chat:reviewer")


def solve(problem: str) -> str:
    """The reviewer's answer."""
    draft = solver.run_sync(problem).output
    return reviewer.run_sync(f"{problem}\n\n{draft}").output
