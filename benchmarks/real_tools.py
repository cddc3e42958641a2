"""First replies of a small model that is offered a tool: calls, faults, answers.

make models
python benchmarks/real_tools.py    # writes docs/data/real-tools.json
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from pathlib import Path

from flowzoo.agents.hf.policy import TransformersPolicy
from flowzoo.agents.policy import Completion, Request, Sampling
from flowzoo.agents.problems import distinct_problems
from flowzoo.envs import Episode, Reply, make_workflow
from flowzoo.envs.workflows.reasoner_python import PYTHON
from flowzoo.files import file_digest, write_json
from flowzoo.provenance import versions

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "models/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf"
RESULT = ROOT / "docs/data/real-tools.json"


def kind(reply: Reply, completion: Completion) -> str:
    """Kind of a reply, and for a call that cannot be read the reason."""
    if reply.tool_calls:
        return "call"
    if reply.fault:
        reason = reply.fault.split(":")[0]
        return f"fault: {'arguments do not fit' if reason == PYTHON.name else reason}"
    if completion.finish == "length":
        return "cut off"
    if reply.strict is not None:
        return "answer"
    if '"arguments"' in reply.text:
        return "call without tags"
    return "no call and no answer"


def main() -> None:
    """Play the first turns, count, write."""
    parser = argparse.ArgumentParser(description="first replies of a model that is offered a tool")
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--n", type=int, default=200, help="problems, one reply each")
    parser.add_argument("--show", type=int, default=0, help="replies to print")
    args = parser.parse_args()
    workflow = make_workflow("reasoner_python_v0")
    policy = TransformersPolicy.from_pretrained(
        args.model, sampling=Sampling(max_tokens=96), max_batch=50
    )
    episodes = [
        Episode(workflow, problem)
        for problem in distinct_problems(workflow.task, "validation", args.n)
    ]
    requests = [
        Request((i,), "reasoner_0", "reasoner", turn.messages, tools=turn.tools)
        for i, episode in enumerate(episodes)
        for turn in episode.waiting
    ]
    completions = asyncio.run(policy.generate(requests))
    kinds = Counter[str]()
    for number, (episode, completion) in enumerate(zip(episodes, completions, strict=True)):
        turn = episode.waiting[0]
        episode.reply("reasoner_0", completion.text)
        assert turn.reply is not None
        kinds[kind(turn.reply, completion)] += 1
        if number < args.show:
            print(f"--- {kind(turn.reply, completion)}\n{completion.text}")
    row = {
        "command": "python benchmarks/real_tools.py",
        "columns": ["first reply", "of all"],
        "rows": [[name, f"{count} of {args.n}"] for name, count in kinds.most_common()],
        "model": Path(args.model).name,
        "sha256": file_digest(Path(args.model)),
        "engine_dtype": policy.engine_dtype,
        "versions": versions(),
    }
    write_json(RESULT, row)
    print(row["rows"])


if __name__ == "__main__":
    main()
