"""CAMEL: two chat agents, the second reads the first one's message.

flowzoo train --program examples/agents/camel_pair.py:solve --options at_once=1 --steps 2
"""

from camel.agents import ChatAgent
from camel.models import ModelFactory
from camel.types import ModelPlatformType

ROLES = {"solver": 1, "reviewer": 1}
kind = ModelPlatformType.OPENAI_COMPATIBLE_MODEL
solver, reviewer = (
    ChatAgent(
        "You answer problems.", model=ModelFactory.create(model_platform=kind, model_type=name)
    )
    for name in ROLES
)


def solve(problem: str) -> str:
    """The reviewer's answer."""
    draft = solver.step(problem).msgs[0].content
    return reviewer.step(f"{problem}\n\n{draft}").msgs[0].content
