"""agent-lightning's proxy before an endpoint, as a process of its own.

Run by `python -m benchmarks.peer_proxy` in the peer's environment. It prints its process, version
and base URL, serves until its input ends, and prints the number of spans that it stored.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import sys
from typing import Any

from agentlightning.llm_proxy import LLMProxy
from agentlightning.store import InMemoryLightningStore, LightningStoreThreaded

UPSTREAM, MODELS = sys.argv[1], int(sys.argv[2])


def model(number: int) -> dict[str, Any]:
    """A model that the upstream answers for."""
    params = {"model": "openai/constant", "api_base": UPSTREAM, "api_key": "any"}
    return {"model_name": f"agent_{number}", "litellm_params": params}


async def main() -> None:
    """Serve."""
    store = LightningStoreThreaded(InMemoryLightningStore())
    proxy: Any = LLMProxy(
        model_list=[model(number) for number in range(MODELS)],
        store=store,
        host="127.0.0.1",
        launch_mode="thread",
    )
    await proxy.start()
    rollout = await store.start_rollout(input={"origin": "measurement"})
    attempt = rollout.attempt.attempt_id
    resource = proxy.as_resource(rollout.rollout_id, attempt, model="agent_0")
    version = importlib.metadata.version("agentlightning")
    line = {"process": os.getpid(), "version": version, "url": f"{resource.endpoint}/v1"}
    print(json.dumps(line), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await asyncio.sleep(1)  # spans are stored behind the answers
    print(json.dumps({"spans": len(await store.query_spans(rollout.rollout_id))}), flush=True)
    os._exit(0)


asyncio.run(main())
