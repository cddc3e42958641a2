"""An agent program with two roles, which knows nothing of flowzoo: two drafts, then a choice.

flowzoo eval --program examples/openai_program.py:solve --task math --policy pocket --n 100
flowzoo train --program examples/openai_program.py:solve --sharing isolated --steps 2
"""

import asyncio

from openai import AsyncOpenAI

ROLES = {"solver": 2, "judge": 1}
BALLOT = "{problem}\n\n{drafts}\n\nWhich candidate is right? Put its number in \\boxed{{}}."


async def solve(problem: str, base_url: str, api_key: str) -> str:
    """The draft that the judge picks."""
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:

        async def ask(model: str, text: str) -> str:
            reply = await client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": text}]
            )
            return reply.choices[0].message.content or ""

        drafts = await asyncio.gather(*(ask(f"solver_{number}", problem) for number in range(2)))
        shown = "\n\n".join(f"Candidate {n}:\n{draft}" for n, draft in enumerate(drafts, 1))
        question = BALLOT.format(problem=problem.partition("\n")[0], drafts=shown)
        choice = await ask("judge", question)
    return drafts["2" in choice.rpartition("boxed")[2]]
