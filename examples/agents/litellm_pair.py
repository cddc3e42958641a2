"""LiteLLM: completions of two models.

flowzoo train --program examples/agents/litellm_pair.py:solve --options at_once=1 --steps 2
"""

import litellm

ROLES = {"solver": 1, "reviewer": 1}


def ask(model: str, text: str) -> str:
    """The reply of a model."""
    messages = [{"role": "user", "content": text}]
    return litellm.completion(f"openai/{model}", messages).choices[0].message.content


def solve(problem: str) -> str:
    """The reviewer's answer."""
    return ask("reviewer", f"{problem}\n\n{ask('solver', problem)}")
