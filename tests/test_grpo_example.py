"""examples/grpo_from_scratch.py: its loop, at the size of a test."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).resolve().parent.parent / "examples" / "grpo_from_scratch.py"


def test_it_is_at_most_eighty_lines():
    assert len(PATH.read_text().splitlines()) <= 80


@pytest.mark.full
def test_it_plays_all_roles_and_learns_what_was_rewarded():
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from flowzoo.agents.pocket import pocket_path

    spec = importlib.util.spec_from_file_location("grpo_example", PATH)
    assert spec is not None
    assert spec.loader is not None
    grpo: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(grpo)
    torch.manual_seed(0)
    path = str(pocket_path("math"))
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    calls = grpo.play(model, tokenizer, "train", [0, 1] * 3)
    assert [key for key, *_ in calls].count((0, "aggregator_0")) == 3
    assert len(calls) == 6 * 4
    by_episode: dict[Any, set[float]] = {}
    for number, (_, prompt, reply, reward) in enumerate(calls):
        by_episode.setdefault(number % 6, set()).add(reward)  # side by side, agent by agent
        assert len(prompt) > 5
        assert 1 <= len(reply) <= grpo.TOKENS
        ended = reply == tokenizer.eos_token_id
        assert ended.sum() <= 1
        assert len(reply) == grpo.TOKENS or ended[-1]
    assert all(len(rewards) == 1 for rewards in by_episode.values())  # the team's

    def gap():
        """How much likelier the rewarded reply is than the other one."""
        logps, spans = grpo.log_probs(model, [(prompt, reply, 0) for _, prompt, reply, _ in pair])
        good, bad = (logps * spans).sum(1)
        return float((good - bad).detach())

    (_, prompt, reply, _), (_, _, other, _) = calls[0], calls[1]
    pair = [(("p", "a"), prompt, reply, 1.0), (("p", "a"), prompt, other, 0.0)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    before = gap()
    for _ in range(3):
        grpo.learn(model, optimizer, pair * 4)
    assert gap() > before + 0.5
