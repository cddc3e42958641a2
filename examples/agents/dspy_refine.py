"""DSPy: a module that predicts, and predicts again with the first answer in sight.

flowzoo train --program examples/agents/dspy_refine.py:solve --options at_once=1 --steps 2
"""

import dspy

ROLES = {"solver": 1, "reviewer": 1}
solver, reviewer = (dspy.LM(f"openai/{name}", cache=False) for name in ROLES)
dspy.configure(lm=solver)


def solve(problem: str) -> str:
    """The reviewer's answer."""
    draft = solver(problem)[0]
    return reviewer(f"{problem}\n\n{draft}")[0]
