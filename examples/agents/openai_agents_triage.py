"""OpenAI Agents SDK: a triage agent hands every problem off to one of two specialists.

flowzoo train --program examples/agents/openai_agents_triage.py:solve --model MODEL --options \
    at_once=1 --sharing isolated --steps 2
"""

from agents import Agent, OpenAIChatCompletionsModel, Runner, handoff, set_tracing_disabled
from agents.extensions.handoff_filters import remove_all_tools
from openai import AsyncOpenAI

ROLES = {"triage": 1, "adder": 1, "subtracter": 1}
ROUTE = "Hand the problem off: sums to adder, differences to subtracter."

set_tracing_disabled(True)  # traces would be sent to OpenAI


async def solve(problem: str, base_url: str, api_key: str) -> str:
    """The answer of the agent that the problem is handed to, or of the triage agent itself."""
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        models = {name: OpenAIChatCompletionsModel(name, client) for name in ROLES}
        specialists = [Agent(name, model=models[name]) for name in ("adder", "subtracter")]
        triage = Agent(
            "triage",
            instructions=ROUTE,
            model=models["triage"],
            handoffs=[handoff(agent, input_filter=remove_all_tools) for agent in specialists],
        )
        result = await Runner.run(triage, problem)
    return str(result.final_output)
