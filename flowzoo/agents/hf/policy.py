"""Replies from a model of the transformers library, batched, on CPU or GPU.

The model may be the very module a learner trains.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from flowzoo.agents.chat.prompts import EngineStats, TemplatedPolicy, check_context
from flowzoo.agents.chat.rendering import warm
from flowzoo.agents.chat.template import ChatTokenizer, stop_tokens
from flowzoo.agents.identity import whole_model
from flowzoo.agents.model_files import (
    GENERATION,
    cannot_load,
    check_integrity,
    hide_bars,
    model_source,
)
from flowzoo.agents.policy import (
    Batching,
    Completion,
    Request,
    Sampling,
    canonical,
    reply_cap,
)
from flowzoo.agents.traits import (
    EngineDType,
    EngineDTypeChoice,
    WeightDType,
    context_of,
    dtype_for,
)
from flowzoo.errors import UsageError, missing_extra
from flowzoo.seeding import key_int

# Before the hub's client is imported, which reads it once.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

try:
    import transformers

    from flowzoo.agents.hf.decode import (
        DecodeRequest,
        check_decoding,
        check_int8,
        decode,
    )
    from flowzoo.agents.hf.kept_linears import KeptLinears
except ImportError as error:
    raise missing_extra(error.name or "transformers", "train", "the transformers engine") from error

_BUCKET = 64
_log = logging.getLogger(__name__)
# Its table is what `_check_weights` says in a line.
logging.getLogger("transformers.modeling_utils").addFilter(
    lambda record: " LOAD REPORT" not in record.getMessage()
)


def micro_batches(
    requests: Sequence[Request], prompts: Sequence[tuple[int, ...]], max_rows: int
) -> Iterator[list[int]]:
    """Indices of `requests` in batches of at most `max_rows`, of similar prompt length."""
    # A function of the set of requests and not of their order: sorted by length in steps of 64
    # tokens, then by request key.
    order = sorted(
        range(len(requests)),
        key=lambda i: (len(prompts[i]) // _BUCKET, canonical(requests[i].key), prompts[i]),
    )
    for start in range(0, len(order), max_rows):
        yield order[start : start + max_rows]


def load_model(source: str, dtype: WeightDType, device: str = "cpu") -> tuple[Any, Any]:
    """Model and tokenizer from a folder in Hugging Face layout, a GGUF file or an id of the hub.

    Only safetensors weights are read (the other format can run code), and code that comes with a
    model is never run.

    Raises:
        UsageError: nothing loadable at `source`, not all of its weights, or an adapter on another
            base than its own.
        DataError: a checkpoint's files have changed.
    """
    source = model_source(source)
    check_integrity(Path(source))
    base = whole_model(source)
    warm()
    hide_bars()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        model, loaded = transformers.AutoModelForCausalLM.from_pretrained(
            base, dtype=dtype, use_safetensors=True, trust_remote_code=False,
            output_loading_info=True, ignore_mismatched_sizes=True,
        )  # fmt: skip
        if base != source:
            model.load_adapter(source)
            if os.path.isfile(os.path.join(source, GENERATION)):
                model.generation_config = transformers.GenerationConfig.from_pretrained(source)
    except Exception as error:  # tokenizers raise bare exceptions
        raise cannot_load(source, error) from error
    _check_weights(base, loaded)
    return model.to(device), tokenizer


def _check_weights(source: str, loaded: Mapping[str, Any]) -> None:
    # transformers would go on with random numbers in their place.
    shapes = [f"{name} is {old}, not {new}" for name, old, new in loaded["mismatched_keys"]]
    faults = sorted(shapes) + sorted(f"{name} is missing" for name in loaded["missing_keys"])
    if faults:
        raise UsageError(
            f"the weights in {source!r} are not those of its config.json "
            f"({', '.join(faults[:2]).replace('torch.Size', '')}{' ...' if faults[2:] else ''}): "
            "put both from one place there"
        )
    if extra := sorted(loaded["unexpected_keys"]):
        _log.warning(
            "tensors in %s are no part of the model: %s (%d in all)",
            source,
            ", ".join(extra[:2]),
            len(extra),
        )


class TransformersPolicy(TemplatedPolicy):
    """A transformers model as a policy. One generation runs at a time, in a separate thread.

    Prompts over their role's budget, or that leave no room for the reply, are shortened
    (`flowzoo.agents.chat.prompts`); `stats.shortened` counts them, and the first one is logged.
    """

    batching: Batching = "static"

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "policy",
        sampling: Sampling | None = None,
        max_batch: int = 256,
        thinking: bool | None = None,
        active: Callable[[], AbstractContextManager[None]] = nullcontext,
        engine_dtype: EngineDType | None = None,
    ) -> None:
        """Use a model and tokenizer that are already loaded.

        Args:
            model: a causal language model; shared with the caller, never copied.
            tokenizer: its tokenizer, with a chat template.
            name: name of the policy in policy maps and records.
            sampling: temperature and lengths; default `Sampling()`.
            max_batch: most sequences decoded together.
            thinking: switches thoughts on or off; None: the chat template's default.
            active: entered around the model's work; picks the LoRA adapter of a shared model.
            engine_dtype: number format of sampling, inside `active`; None: the weights' own.

        Raises:
            UsageError: no chat template, no end token, no switch for thoughts, or no room for a
                prompt.
        """
        self.name = self.original = name  # `thinking_as` renames a copy
        self.model, self.tokenizer = model, tokenizer
        self.sampling = sampling or Sampling()
        self.stats = EngineStats()
        self._context = context_of(model.config) or 2**62
        if max_batch < 1:
            raise UsageError(f"max_batch must be at least 1, got {max_batch}.")
        check_context(self._context, self.sampling)
        self._max_batch, self._active = max_batch, active
        self.engine_dtype = engine_dtype or str(model.dtype).removeprefix("torch.")
        self._chat = ChatTokenizer(tokenizer, thinking)
        self.thinking, self.template_id = thinking, self._chat.template_id
        self._stop_ids = stop_tokens(model, tokenizer)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"flowzoo-{name}")

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        dtype: EngineDTypeChoice = "auto",
        device: str = "cpu",
        **options: Any,
    ) -> "TransformersPolicy":
        """Load a folder in Hugging Face layout, a GGUF file, or a model of the hub by its id.

        See `load_model`.

        Args:
            path: folder, GGUF file or hub id.
            name: name of the policy; default the last part of `path`.
            dtype: number format of the weights; `auto`: see `flowzoo.agents.traits`.
            device: e.g. `cpu`, `cuda`, `cuda:1`.
            options: as for the constructor.

        Raises:
            UsageError: nothing loadable at `path`, or nothing that `check_decoding` finds right.
        """
        source = os.fspath(path)
        settled = dtype_for(dtype, source, device)
        model, tokenizer = load_model(source, "float32" if settled == "int8" else settled, device)
        check_decoding(model, share_prefixes=settled != "float32")
        if settled == "int8":
            KeptLinears(model, "int8").install()
            check_int8(model)
        short = os.path.basename(os.path.normpath(source))
        return cls(model, tokenizer, name=name or short, engine_dtype=settled, **options)

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer `requests`, in their order."""
        # A cancelled call ends the decode loop at its next token and waits for that, so that the
        # weights are at rest when the caller goes on.
        stop = threading.Event()
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._thread, self._generate, list(requests), stop)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            stop.set()
            # Retrieved, so that asyncio does not report it, and a second Ctrl-C ends the wait.
            work.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.wait([work])
            raise

    async def close(self) -> None:
        """End the thread; the model is left to its owner."""
        self._thread.shutdown(wait=False)

    def _generate(self, requests: list[Request], stop: threading.Event) -> list[Completion]:
        prompts = self._prompts(requests, self._context)
        ids = [prompt.ids for prompt in prompts]
        done: list[Completion | None] = [None] * len(requests)
        for places in micro_batches(requests, ids, self._max_batch):
            rows = [
                DecodeRequest(
                    ids[i], key_int(*requests[i].key), reply_cap(requests[i], self.sampling)
                )
                for i in places
            ]
            with self._active():
                sampled, read = decode(
                    self.model, rows, self.sampling, self._stop_ids, stop.is_set,
                    share_prefixes=self.engine_dtype != "float32",
                )  # fmt: skip
            self.stats.read_tokens += read
            for i, result in zip(places, sampled, strict=True):
                done[i] = self._completion(requests[i], prompts[i], *result)
        return [completion for completion in done if completion is not None]
