"""Tiny tokenizers with the special tokens of a family, of bytes or of pieces."""

from __future__ import annotations

from collections.abc import Mapping
from string import printable
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from flowzoo.agents.pocket import pocket_path


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
