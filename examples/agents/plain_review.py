"""The plain client, kept in a global: two drafts in threads, streamed, and a review.

flowzoo train --program examples/agents/plain_review.py:solve --steps 2
"""

from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI

ROLES = {"solver": 2, "reviewer": 1}
client = OpenAI(max_retries=3, timeout=60)


def ask(model: str, text: str) -> str:
    """The reply of a model."""
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": text}],
        stream=True,
        seed=1,
        temperature=1,
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def solve(problem: str) -> str:
    """The reviewer's answer."""
    with ThreadPoolExecutor() as pool:
        drafts = pool.map(lambda name: ask(name, problem), ("solver_0", "solver_1"))
        return ask("reviewer", "\n\n".join([problem, *drafts]))
