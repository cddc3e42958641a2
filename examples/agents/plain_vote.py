"""The plain asynchronous client, never closed: three answers at once, and a judge.

flowzoo train --program examples/agents/plain_vote.py:solve --steps 2
"""

import asyncio

from openai import AsyncOpenAI

ROLES = {"solver": 3, "judge": 1}
client = AsyncOpenAI()


async def ask(model: str, text: str) -> str:
    """The reply of a model."""
    reply = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": text}], stop=["\n\n\n"]
    )
    return reply.choices[0].message.content or ""


async def solve(problem: str) -> str:
    """The judge's answer."""
    drafts = await asyncio.gather(*(ask(f"solver_{number}", problem) for number in range(3)))
    return await ask("judge", "\n\n".join([problem, *drafts]))
