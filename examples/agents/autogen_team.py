"""AutoGen: a round-robin team of two assistants.

flowzoo train --program examples/agents/autogen_team.py:solve --options at_once=1 --steps 2
"""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

ROLES = {"solver": 1, "reviewer": 1}
info = {"vision": False, "function_calling": False, "json_output": False, "family": "unknown",
        "structured_output": False}  # fmt: skip
agents = [
    AssistantAgent(name, OpenAIChatCompletionClient(model=name, model_info=info), system_message="")
    for name in ROLES
]
team = RoundRobinGroupChat(agents, max_turns=2)


async def solve(problem: str) -> str:
    """The reviewer's answer."""
    return (await team.run(task=problem)).messages[-1].content
