"""smolagents: a code agent plans, a tool-calling agent says the final answer.

flowzoo train --program examples/agents/smolagents_code.py:solve --options at_once=1 --steps 2
"""

from smolagents import CodeAgent, LogLevel, OpenAIModel

ROLES = {"coder": 1, "solver": 1}
coder = CodeAgent(
    tools=[], model=OpenAIModel(model_id="coder"), max_steps=2, verbosity_level=LogLevel.ERROR
)
coder.prompt_templates["system_prompt"] = "Write Python in <code> tags, and end by final_answer()."
solver = OpenAIModel(model_id="solver")


def solve(problem: str) -> str:
    """The solver's answer, who has seen the agent's."""
    draft = coder.run(problem)
    content = [{"type": "text", "text": f"{problem}\n\n{draft}"}]
    return solver.generate([{"role": "user", "content": content}]).content
