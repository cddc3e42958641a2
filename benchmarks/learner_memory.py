"""Memory of a learner on a CPU, and what returning freed tensors to the system at once saves.

    python benchmarks/learner_memory.py MODEL [--tokens 4000] [--updates 3] [--json FILE]

One row of so many tokens is trained on with all weights, `compute` bfloat16 and checkpointed
layers, in a process of its own for each setting of the allocator. `needed` is the peak of the
last update, by VmHWM of /proc, `held` what the process keeps after it, and `held by tensors` what
is left of that when the allocator has been asked to return the rest (malloc_trim).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.harness.memory import peak_memory, status_bytes

SETTINGS: Mapping[str, Mapping[str, str]] = {
    "as installed": {},
    "freed at once": {"THP_MEM_ALLOC_ENABLE": "1", "MALLOC_MMAP_THRESHOLD_": str(2**20)},
}
"""Environment variables of torch and glibc."""
GIB = 2**30


def measure(path: str, tokens: int, updates: int) -> dict[str, float]:
    """Train in this process; GiB and CPU seconds of the last update."""
    from flowzoo.agents.hf.policy import load_model
    from flowzoo.agents.model_files import model_source
    from flowzoo.baselines.learner.config import LearnerConfig
    from flowzoo.baselines.learner.update import Learner
    from flowzoo.envs.records import Call

    model, tokenizer = load_model(model_source(path), "float32", "cpu")
    config = LearnerConfig(
        lr=1e-6, compute="bfloat16", gradient_checkpointing=True, microbatch_tokens=tokens
    )
    learner = Learner(model, config)
    draw = random.Random(0)
    ids = tuple(draw.randrange(len(tokenizer)) for _ in range(tokens))
    replied = tokens // 20
    call = Call(
        problem="p", episode="p#0", agent="a_0", role="a", slot=0, turn=0, phase=0, messages=(),
        reply="", strict=True, lenient=True, role_score=None, parts={}, reward=0.0,
        state_hash="", prompts="", prompt_ids=ids[:-replied], output_ids=ids[-replied:],
        logps=(-1.0,) * replied,
    )  # fmt: skip
    peaks: dict[str, int] = {}
    seconds = 0.0
    for _ in range(updates):
        began = time.process_time()
        with peak_memory(peaks, "needed"):
            learner.update([call], [1.0])
        seconds = time.process_time() - began
    held = status_bytes("VmRSS")
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return {
        "needed": peaks["needed"] / GIB,
        "held": held / GIB,
        "held by tensors": status_bytes("VmRSS") / GIB,
        "cpu_s": seconds,
    }


def main() -> int:
    """Measure every setting in a process of its own and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a folder, a GGUF file or a hub id")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--alone", action="store_true", help="measure in this process")
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(measure(options.model, options.tokens, options.updates)))
        return 0
    rows = {}
    for name, variables in SETTINGS.items():
        line = [sys.executable, "-m", "benchmarks.learner_memory", options.model, "--alone",
                "--tokens", str(options.tokens), "--updates", str(options.updates)]  # fmt: skip
        done = subprocess.run(
            line, env={**os.environ, **variables}, check=True, capture_output=True, text=True
        )
        rows[name] = json.loads(done.stdout.splitlines()[-1])
    result = {
        "command": "python -m benchmarks.learner_memory models/SmolLM2-135M-Instruct.Q4_1.gguf",
        "model": Path(options.model).name,
        "tokens": options.tokens,
        "rows": rows,
    }
    text = json.dumps(result, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
