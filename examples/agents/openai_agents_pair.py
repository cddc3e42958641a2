"""OpenAI Agents SDK: a solver, and a reviewer who reads its draft, with the SDK's default client.

flowzoo train --program examples/agents/openai_agents_pair.py:solve --options at_once=1 --steps 2
"""

from agents import Agent, Runner, set_default_openai_api, set_tracing_disabled

ROLES = {"solver": 1, "reviewer": 1}
set_default_openai_api("chat_completions")
set_tracing_disabled(True)  # traces would be sent to OpenAI
solver = Agent("solver", model="solver")
reviewer = Agent("reviewer", model="reviewer")


async def solve(problem: str) -> str:
    """The reviewer's answer."""
    draft = await Runner.run(solver, problem)
    checked = await Runner.run(reviewer, f"{problem}\n\n{draft.final_output}")
    return checked.final_output
