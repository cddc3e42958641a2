"""A tiny model, calls for tests that care about few of their fields, and a run that is killed."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flowzoo.envs.records import Call

VOCAB = 23
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 24,
    "max_position_embeddings": 64, "initializer_range": 0.3, "tie_word_embeddings": False,
}  # fmt: skip
"""Fields of a Qwen3Config."""


def new_call(role: str = "a", slot: int = 0, **fields: Any) -> Call:
    """A call of agent `{role}_{slot}` in its first turn; log-probs are -3 by default."""
    usual: dict[str, Any] = {
        "problem": "p", "episode": "e", "agent": f"{role}_{slot}", "turn": 0, "phase": 0,
        "messages": (), "reply": "", "strict": True, "lenient": True, "role_score": None,
        "parts": {}, "reward": 0.0, "state_hash": "", "prompts": "",
    }  # fmt: skip
    usual["logps"] = (-3.0,) * len(fields.get("output_ids", ()))
    return Call(role=role, slot=slot, **usual | fields)


def copy_after(step: int, run: Path, copy: Path) -> Callable[[dict[str, Any]], None]:
    """Callback that copies a run directory as a process killed after `step` would leave it."""

    def on_row(row: dict[str, Any]) -> None:
        if row["step"] == step:
            shutil.copytree(run, copy)

    return on_row


def tiny_model(seed: int = 0, layers: int = 2, **changes: Any) -> Any:
    """A random Qwen3 on one thread, the same for the same seed."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    shape = SHAPE | {"num_hidden_layers": layers} | changes
    return Qwen3ForCausalLM(Qwen3Config(**shape)).eval()
