"""LlamaIndex: a workflow of two steps, with events between them.

flowzoo train --program examples/agents/llama_index_chain.py:solve --options at_once=1 --steps 2
"""

import os

from llama_index.core.workflow import Event, StartEvent, StopEvent, Workflow, step
from llama_index.llms.openai_like import OpenAILike

ROLES = {"solver": 1, "reviewer": 1}
door = {"api_base": os.environ.get("OPENAI_BASE_URL"), "is_chat_model": True}
solver, reviewer = (OpenAILike(model=name, **door) for name in ROLES)


class Drafted(Event):
    """A draft."""

    text: str


class Chain(Workflow):
    """A draft and its review."""

    @step
    async def draft(self, event: StartEvent) -> Drafted:
        """Ask the solver."""
        return Drafted(text=f"{event.problem}\n\n{await solver.acomplete(event.problem)}")

    @step
    async def review(self, event: Drafted) -> StopEvent:
        """Ask the reviewer."""
        return StopEvent(result=str(await reviewer.acomplete(event.text)))


async def solve(problem: str) -> str:
    """The reviewer's answer."""
    return await Chain(timeout=60).run(problem=problem)
