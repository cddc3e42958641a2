"""Haystack: a pipeline of two generators with prompt builders.

flowzoo train --program examples/agents/haystack_pipeline.py:solve --options at_once=1 --steps 2
"""

from haystack import Pipeline
from haystack.components.builders import ChatPromptBuilder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage

ROLES = {"solver": 1, "reviewer": 1}
review = [ChatMessage.from_user("{{ problem }}\n\n{{ drafts[0].text }}")]
pipeline = Pipeline()
pipeline.add_component("solver", OpenAIChatGenerator(model="solver"))
pipeline.add_component("prompt", ChatPromptBuilder(review, required_variables="*"))
pipeline.add_component("reviewer", OpenAIChatGenerator(model="reviewer"))
pipeline.connect("solver.replies", "prompt.drafts")
pipeline.connect("prompt.prompt", "reviewer.messages")


def solve(problem: str) -> str:
    """The reviewer's answer."""
    given = {
        "solver": {"messages": [ChatMessage.from_user(problem)]},
        "prompt": {"problem": problem},
    }
    return pipeline.run(given)["reviewer"]["replies"][0].text
