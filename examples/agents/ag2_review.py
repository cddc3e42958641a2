"""AG2: an agent solves, another checks; the library never closes its clients.

flowzoo train --program examples/agents/ag2_review.py:solve --options at_once=1 --steps 2
"""

from ag2 import Agent
from ag2.config import OpenAIConfig

ROLES = {"solver": 1, "reviewer": 1}
solver = Agent("solver", prompt="Solve the problem.", config=OpenAIConfig(model="solver"))
reviewer = Agent("reviewer", prompt="Check the answer.", config=OpenAIConfig(model="reviewer"))


async def solve(problem: str) -> str:
    """The reviewer's answer."""
    draft = await solver.ask(problem)
    checked = await reviewer.ask(f"{problem}\n\n{draft.body}")
    return checked.body or ""
