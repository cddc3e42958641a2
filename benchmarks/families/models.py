"""Tiny tokenizers and models of the families, of random weights: rows in batches, and exports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from string import printable
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from flowzoo.agents.hf.decode import DecodeRequest, check_decoding, decode
from flowzoo.agents.identity import end_at
from flowzoo.agents.model_files import save_model
from flowzoo.agents.pocket import pocket_path
from flowzoo.agents.policy import Completion, Sampling
from flowzoo.agents.traits import context_of
from flowzoo.baselines.learner.config import LayoutChoice, LearnerConfig
from flowzoo.baselines.learner.update import Learner

BORDER = 32
"""Window of attention, and the length that rope was made for."""
SIZES: dict[str, Any] = {
    "hidden_size": 16, "n_embd": 16, "intermediate_size": 24, "num_hidden_layers": 2, "n_layer": 2,
    "num_attention_heads": 2, "n_head": 2, "num_key_value_heads": 1, "head_dim": 8,
    "max_position_embeddings": 512, "n_positions": 512, "initializer_range": 0.3,
    "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": BORDER,
    "query_pre_attn_scalar": 8,
}  # fmt: skip
LENGTHS = (3, BORDER - 4, BORDER + 5, 3 * BORDER)
"""Tokens of prompts on either side of the border; replies of some cross it."""
_REPLY = 12


def make_tokenizer(family: Mapping[str, Any]) -> Any:
    """The tokenizer of an entry of `templates.toml`, its chat template included."""
    special = [*family["special"], *family["stops"], family["end"], family["eos"]]
    kind = family.get("pieces")
    made: Any = _of_pieces(kind) if kind else AutoTokenizer.from_pretrained(pocket_path())
    # In a tokenizer with spaces before texts the special tokens take the blanks behind them.
    strips = kind == "before"
    tokens = [AddedToken(text, special=True, rstrip=strips) for text in dict.fromkeys(special)]
    made.add_special_tokens({"additional_special_tokens": tokens})
    made.add_tokens(family.get("words", []))
    made.eos_token, made.chat_template = family["eos"], family["template"]
    return made


def _of_pieces(kind: str) -> Any:
    # Letters and, for all else, bytes.
    texts = [*(f"<0x{byte:02X}>" for byte in range(256)), "▁", *sorted(set(printable) - {" "})]
    vocabulary = {text: number for number, text in enumerate(texts)}
    inner = Tokenizer(BPE(vocabulary, [], byte_fallback=True))
    spaces = normalizers.Replace(" ", "▁")
    words: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if kind == "before":
        inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
        words.append(decoders.Strip(" ", 1, 0))
    else:
        inner.normalizer = spaces
    inner.decoder = decoders.Sequence(words)
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def build(family: dict[str, Any]) -> tuple[Any, Any]:
    """The model and tokenizer of an entry of `templates.toml`."""
    tokenizer = make_tokenizer(family)
    kind = CONFIG_MAPPING[family["model"]]
    usual = kind()
    fields = {name: size for name, size in SIZES.items() if hasattr(usual, name)}
    fields = {name: size for name, size in fields.items() if not _is_read_only(kind, name)}
    stops = sorted(tokenizer.convert_tokens_to_ids(family["stops"]))
    # Ids of their own that are in the vocabulary.
    special = dict.fromkeys(("pad_token_id", "bos_token_id"), 0)
    fields |= {"vocab_size": len(tokenizer), "eos_token_id": stops, **special}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(kind(**fields, **family.get("fields", {})))
    end_at(model, stops)
    return model.eval(), tokenizer


def _is_read_only(kind: type, name: str) -> bool:
    found = getattr(kind, name, None)
    return isinstance(found, property) and found.fset is None


def lengths_of(model: Any) -> list[int]:
    """`LENGTHS` as far as rows fit into the context, which ends at a border of its rope."""
    most = (context_of(model.config) or 2**62) - _REPLY
    return sorted({min(size, most) for size in LENGTHS})


def sampled(model: Any, lengths: Sequence[int], temperature: float = 1.0) -> list[Completion]:
    """Replies to prompts of these lengths, in one batch; the same whatever is beside them."""
    most = int(model.config.vocab_size)
    prompts = [tuple(1 + (7 * n + size) % (most - 1) for n in range(size)) for size in lengths]
    rows = [DecodeRequest(ids, size, _REPLY) for ids, size in zip(prompts, lengths, strict=True)]
    sampling = Sampling(temperature=temperature)
    outputs, _ = decode(model, rows, sampling, frozenset(), lambda: False)
    return [
        Completion("", row.prompt, tuple(output.tokens), tuple(output.logps), "length")
        for row, output in zip(rows, outputs, strict=True)
    ]


def invariance(model: Any) -> float:
    """The largest difference of a log-prob in a hostile batch from that of the row alone.

    Rows on both sides of the border, sampled and learned, packed (where the model is) and padded.
    """
    check_decoding(model)
    lengths = lengths_of(model)
    together = sampled(model, lengths)
    alone = [sampled(model, [size])[0] for size in lengths]
    gaps = [_gap(one.logps, other.logps) for one, other in zip(together, alone, strict=True)]
    layouts: tuple[LayoutChoice, ...] = ("padded", "auto")
    for layout in layouts:
        learner = Learner(model, LearnerConfig(layout=layout))
        read = learner.plain_logps(together)
        for row, logps in zip(together, read, strict=True):
            (single,) = learner.plain_logps([row])
            gaps += [_gap(logps, single), _gap(logps, row.logps)]
    return max(gaps)


def _gap(one: Sequence[float], other: Sequence[float]) -> float:
    return float((torch.tensor(one) - torch.tensor(other)).abs().max())


def export_fault(model: Any, tokenizer: Any, folder: Path) -> str:
    """What plain transformers does otherwise with the exported model; "" if nothing."""
    ends = model.generation_config.eos_token_id
    save_model(model, folder)
    tokenizer.save_pretrained(folder)
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder)
    if loaded.generation_config.eos_token_id != ends:
        return f"ends {loaded.generation_config.eos_token_id} and not {ends}"
    (here,) = sampled(model, LENGTHS[:1], 0.0)
    prompt = torch.tensor([here.prompt_ids])
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": _REPLY, "pad_token_id": 0}
    there = loaded.generate(prompt, attention_mask=torch.ones_like(prompt), **options)
    reply = there[0, prompt.shape[1] :].tolist()
    same = reply == list(here.output_ids[: len(reply)])
    stopped = len(reply) == _REPLY or reply[-1] in ([ends] if isinstance(ends, int) else ends)
    return "" if same and stopped else f"another reply: {reply}"
