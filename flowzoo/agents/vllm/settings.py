"""Settings of a vLLM engine, and the environment variables it needs before its import."""

import json
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from flowzoo.agents.traits import EngineDType, WeightDType
from flowzoo.declared import NonNegative, Positive, Share, check_declared
from flowzoo.errors import UsageError, check_choice

Placement = Literal["colocated", "split"]
WeightTransfer = Literal["file", "ipc", "nccl"]

GIB = 2**30
CPU_KV_GIB = 0.25
"""Default size of an engine's cache on a CPU."""
_RECEIVERS: dict[WeightTransfer, str] = {
    "file": "flowzoo_file", "ipc": "flowzoo_ipc", "nccl": "nccl",
}  # fmt: skip
"""Receivers of weights in the engine, by vLLM's names; two are registered by `worker`."""
CPU_BLOCK = 32
"""vLLM's CPU kernels want a multiple of 32; with its default of 128, prompts shorter than that
would never be found in the prefix cache."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One vLLM engine.

    Raises:
        UsageError: an unknown choice or a number out of range.
    """

    placement: Placement = "colocated"
    """`colocated`: in this process; `split`: in its own processes."""
    devices: str = ""
    """GPUs of a split engine, as CUDA_VISIBLE_DEVICES writes them; empty: those this process sees.
    """
    tensor_parallel: Positive[int] = 1
    """GPUs over which every layer of a split engine is spread."""
    dtype: EngineDType = "float32"
    """Number format of weights and cache."""
    kv_gib: NonNegative[float] = 0.0
    """Size of the KV cache in GiB; 0: on a CPU 0.25 or, where that is more, `sequence_bytes`, and
    on a GPU what `gpu_share` leaves."""
    sequence_bytes: NonNegative[int] = 0
    """Cache that one sequence of the greatest length takes, without which vLLM does not start;
    `VLLMEngine.local` knows it by the model."""
    gpu_share: Share = 0.4
    """Share of the GPU's memory for weights, cache and work space where `kv_gib` is 0."""
    max_batch: Positive[int] = 256
    """Most sequences decoded together."""
    max_step_tokens: Positive[int] = 8192
    """Most tokens, prompts included, that one engine step computes."""
    max_context: NonNegative[int] = 0
    """Most tokens of prompt and reply; 0: the model's own limit."""
    max_pending: Positive[int] = 4096
    """Most requests inside vLLM at a time; further ones wait before it."""
    adapters: NonNegative[int] = 0
    """Most LoRA adapters in one batch; 0: an engine without adapters."""
    adapter_rank: Positive[int] = 16
    """Largest rank of an adapter: one of 1, 8, 16, 32, 64, 128, 256, 320, 512."""
    sleep: bool = False
    """Give cache (and weights) back while the learner runs; GPUs only."""
    weight_transfer: WeightTransfer = "file"
    """Carrier of all weights to a split engine: `file`, in shared memory; `ipc`, memory of the GPU
    that learner and engine share; `nccl`, from GPU to GPU. A colocated engine gets them in memory,
    and adapters are always files."""
    load_format: Literal["auto", "dummy"] = "auto"
    """`dummy`: random weights, nothing read but the config; for measuring speed."""
    seed: int = 0
    """Seed of vLLM's generators; samples do not depend on it, since each request has a seed."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_choice("number format of the engine", self.dtype, WeightDType)
        if self.devices and self.placement == "colocated":
            raise UsageError(
                "`devices` is for a split engine: a colocated one runs where this process does; "
                "set placement to split or CUDA_VISIBLE_DEVICES before the start."
            )
        if self.weight_transfer != "file" and self.placement == "colocated":
            raise UsageError(
                f"`weight_transfer` {self.weight_transfer} is for a split engine: a colocated one "
                "gets its weights in this process's memory; set placement to split, or leave it "
                "out."
            )


def cache_note(fields: Mapping[str, Any], settings: EngineSettings) -> str:
    """Warning about a cache that is larger than usual on a CPU, or an empty string."""
    size = fields.get("kv_cache_memory_bytes", 0)
    if settings.kv_gib or size <= CPU_KV_GIB * GIB:
        return ""
    return (
        f"the engine's KV cache takes {size / GIB:.2f} GiB, for one sequence of "
        f"{settings.max_context:,} tokens or many short ones (engine_memory sets it; max_prompt "
        "shortens the sequence)"
    )


def prepare_environment(*, cpu: bool) -> None:
    """Set what vLLM reads when it is imported or started; variables that are set are kept."""
    # The in-process engine needs VLLM_ENABLE_V1_MULTIPROCESSING=0. On a CPU, threads are not bound
    # to cores (the learner uses the same ones) and nothing is compiled, which costs more than it
    # gains at the sizes a CPU runs.
    defaults = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if cpu:
        defaults |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1"}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])


def engine_fields(path: str, settings: EngineSettings, *, cpu: bool) -> dict[str, Any]:
    """The arguments of vLLM's `EngineArgs` for the model at `path`."""
    if cpu and settings.weight_transfer != "file":
        raise UsageError(
            f"`weight_transfer` {settings.weight_transfer} goes from GPU to GPU, and there is none "
            "here: leave it at file."
        )
    if cpu and settings.sleep:
        raise UsageError(
            "an engine can only release a GPU's memory (engine_sleep): on a CPU lower the size of "
            "its cache instead (engine_memory)."
        )
    fields: dict[str, Any] = {
        "model": path,
        "tokenizer": path,
        "dtype": settings.dtype,
        "seed": settings.seed,
        "load_format": settings.load_format,
        "max_num_seqs": settings.max_batch,
        "max_num_batched_tokens": settings.max_step_tokens,
        "max_model_len": settings.max_context or None,
        "enable_prefix_caching": True,
        # Log-probs of the distribution sampled from; vLLM's default ignores the temperature.
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",  # the request's sampling, not the model card's
        "disable_log_stats": True,
        "trust_remote_code": False,
        "use_tqdm_on_load": False,
        "worker_extension_cls": "flowzoo.agents.vllm.worker.WorkerExtension",
        "weight_transfer_config": {"backend": _RECEIVERS[settings.weight_transfer]},
    }
    if settings.kv_gib or cpu:
        usual = max(int(CPU_KV_GIB * GIB), settings.sequence_bytes)
        fields["kv_cache_memory_bytes"] = int(settings.kv_gib * GIB) or usual
    if cpu:
        # Prompts whole or not at all: vLLM (0.32) rewinds the seeded generator of a request whose
        # prompt is cut over two steps, which CPU generators cannot.
        step = max(settings.max_step_tokens, settings.max_batch, settings.max_context)
        fields |= {
            "enforce_eager": True,
            "block_size": CPU_BLOCK,
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": step,
        }
    else:
        fields |= {
            "gpu_memory_utilization": settings.gpu_share,
            "enable_sleep_mode": settings.sleep,
        }
    if settings.tensor_parallel > 1:
        # In an actor of Ray vLLM would start more actors, for which no resources are reserved.
        fields |= {
            "tensor_parallel_size": settings.tensor_parallel,
            "distributed_executor_backend": "mp",
        }
    if settings.adapters:
        fields |= {
            "enable_lora": True,
            "max_loras": settings.adapters,
            "max_cpu_loras": 2 * settings.adapters + 2,  # the next version beside this one
            "max_lora_rank": settings.adapter_rank,
        }
    return fields


def serve_command(path: str, settings: EngineSettings, port: int, *, cpu: bool) -> list[str]:
    """A command line that serves the model at `path` as `flowzoo.agents.vllm.remote` wants it."""
    # Training needs VLLM_SERVER_DEV_MODE=1 in its environment, and with adapters
    # VLLM_ALLOW_RUNTIME_LORA_UPDATING=1; neither belongs on a server that others can reach.
    # The module behind `vllm serve`: the CPU build's own script looks for the CUDA build's name.
    args = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", path]
    args += ["--host", "127.0.0.1", "--port", str(port)]
    fields = engine_fields(path, settings, cpu=cpu) | {"enable_prompt_tokens_details": True}
    skipped = ("model", "tokenizer", "trust_remote_code", "use_tqdm_on_load", "disable_log_stats")
    for name, value in fields.items():
        if name in skipped or value is None:
            continue
        no = "no-" if value is False else ""
        args.append(f"--{no}{name.replace('_', '-')}")
        if not isinstance(value, bool):
            args.append(json.dumps(value) if isinstance(value, dict) else str(value))
    return args


BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number by number format."""
_WITHOUT = ("linear_attention", "mamba", "conv", "recurrent")
"""Kinds of layers whose memory does not grow with the context."""


def cache_numbers(config: Any) -> int:
    """Numbers in the cache for one token: keys and values of every attention layer."""
    # Layers that look back only so far count as if they looked back all the way, as vLLM's cache of
    # mixed layers does at worst.
    text = config.get_text_config(decoder=True)
    queries = getattr(text, "num_attention_heads", None) or 0
    if not queries:  # a family without attention
        return 0
    heads = getattr(text, "num_key_value_heads", None) or queries
    width = getattr(text, "head_dim", None) or text.hidden_size // queries
    kinds = getattr(text, "layer_types", None)
    layers = text.num_hidden_layers
    if kinds:
        layers = sum(not any(part in kind for part in _WITHOUT) for kind in kinds)
    return 2 * layers * heads * width


def cache_bytes(config: object, dtype: str, tokens: int, block: int) -> int:
    """Bytes that vLLM needs to hold one sequence of `tokens` in blocks of `block` tokens."""
    # One block more than the sequence fills: vLLM keeps an empty one.
    blocks = -(-tokens // block) + 1
    return blocks * block * cache_numbers(config) * BYTES[dtype]
