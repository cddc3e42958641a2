"""Agno: two agents, synchronous.

flowzoo train --program examples/agents/agno_team.py:solve --options at_once=1 --steps 2
"""

import os

from agno.agent import Agent
from agno.models.openai.like import OpenAILike

ROLES = {"solver": 1, "reviewer": 1}
url = os.environ.get("OPENAI_BASE_URL")
solver, reviewer = (
    Agent(model=OpenAILike(id=name, base_url=url, api_key=os.environ.get("OPENAI_API_KEY")))
    for name in ROLES
)


def solve(problem: str) -> str:
    """The reviewer's answer."""
    draft = solver.run(problem).content
    return reviewer.run(f"{problem}\n\n{draft}").content
