r"""The tokenizer of the pocket family: byte-level BPE with single digits, and ChatML chats.

Digits are never merged, so that arithmetic looks the same everywhere; nor are the pieces that a
recipe calls atoms, such as the cells of a board, whose places would be lost. Other merges may cross
word boundaries: the fixed wording of the workflows shrinks to a few tokens (`. \boxed{` is one),
which is what makes reinforcement learning on a laptop fast. Any text can be encoded, byte by byte
if need be.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowzoo.errors import missing_extra

try:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast
except ImportError as error:
    raise missing_extra(error.name or "tokenizers", "train", "making a tokenizer") from error

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)


def train_tokenizer(
    corpus: Iterable[str], vocab_size: int, context: int, atoms: tuple[str, ...] = ()
) -> Any:
    """A tokenizer trained on `corpus`.

    Args:
        corpus: pieces of text without special tokens.
        vocab_size: tokens in all, at least the 256 bytes and 3 special ones.
        context: longest sequence of the models it serves, in tokens.
        atoms: regular expressions (Oniguruma) of pieces that never merge with what is beside them.
    """
    bpe = Tokenizer(models.BPE())
    cuts = [pre_tokenizers.Split(Regex("|".join(atoms)), "isolated")] if atoms else []
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            *cuts,
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
