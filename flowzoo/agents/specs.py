"""Policies from one line of text, as commands and configs name them.

`scripted:P` (right with probability P), `hf:PATH` (a folder, a GGUF file or an id of the hub),
`vllm:PATH` (the same model in a vLLM engine of this process), `vllm:PATH@URL` (a running
`vllm serve`, token ids in and out), `openai:MODEL@URL` (an OpenAI-compatible endpoint) and `pocket`
(the small model of the task that is played; `pocket:TASK` is that of another, `pocket:SCALE` and
`pocket:TASK-SCALE` are those of another size, see `flowzoo.agents.pocket`). `human` is the person
at the terminal.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from flowzoo.agents.hub import check_model
from flowzoo.agents.human import HumanPolicy
from flowzoo.agents.number_format import EngineDType, EngineDTypeChoice, dtype_for, vllm_device
from flowzoo.agents.pocket import pocket_path, read_pocket
from flowzoo.agents.policy import Policy, Sampling
from flowzoo.agents.scripted import Oracle, ScriptedPolicy
from flowzoo.errors import UsageError, unknown

EngineName = Literal["transformers", "vllm", "openai"]

FORMS = {
    "pocket": "The small model of the task that is played, which comes with flowzoo.",
    "pocket:TASK": "That of another task.",
    "pocket:SCALE": "That of another size: xs, s, m.",
    "pocket:TASK-SCALE": "That of another task and size.",
    "scripted:P": "Every reply does its job with probability P, no model needed.",
    "human": "The person at the terminal.",
    "hf:PATH": "A transformers model: a folder, or an id of the hub.",
    "vllm:PATH": "The same in a vLLM engine of this process.",
    "vllm:PATH@URL": "The same at a running `vllm serve`.",
    "openai:MODEL@URL": "Any OpenAI-compatible endpoint.",
}
"""The forms of a policy, with what they mean."""


def make_policy(
    spec: str,
    *,
    oracle: Oracle | None = None,
    name: str | None = None,
    sampling: Sampling | None = None,
    seed: int = 0,
    engine: EngineName = "transformers",
    endpoint: str = "",
    thinking: bool | None = None,
    engine_dtype: EngineDTypeChoice = "auto",
    engine_memory: float = 0.0,
) -> Policy:
    """The policy that `spec` describes.

    Args:
        spec: one of the forms in the module's docstring.
        oracle: the workflow that is played; `scripted` and a `pocket` without TASK need it.
        name: name of the policy; default the spec itself.
        sampling: temperature and lengths of a model.
        seed: of a scripted policy.
        engine: what runs `hf:PATH` and `pocket`; never replaced by another.
        endpoint: URL of the server for `engine="openai"`.
        thinking: switches a model's thoughts on or off; None: its chat template's default.
        engine_dtype: number format of a model that runs here; `auto` as
            `flowzoo.agents.number_format` finds it.
        engine_memory: GiB of KV cache of a vLLM engine of this process; 0: its usual size.

    Raises:
        UsageError: a spec of no known form, or nothing usable behind it.
        MissingExtraError: the engine's library is not installed.
    """
    kind, _, rest = spec.partition(":")
    label = name or spec
    if kind == "scripted":
        if oracle is None:
            raise UsageError(f"policy {spec!r} needs the workflow that is played (oracle=...).")
        return ScriptedPolicy(oracle, _probability(spec, rest), seed=seed, name=label)
    if spec == "human":
        return HumanPolicy(label)
    served = named_model(spec, oracle.task.name if oracle else "", engine, endpoint)
    if served is not None:
        return served.open(
            engine_dtype, engine_memory, name=label, sampling=sampling, thinking=thinking
        )
    if kind == "openai":
        from flowzoo.agents.openai.policy import OpenAIPolicy

        model, url = _endpoint(spec, rest)
        return OpenAIPolicy(model, url, name=label, sampling=sampling, thinking=thinking)
    raise unknown("policy", spec, FORMS)


class NamedModel(NamedTuple):
    """A model that a spec names by its path, and the engine that runs it."""

    path: str
    engine: EngineName
    url: str
    """Of the server, for the engine `openai`."""

    def dtype(self, choice: EngineDTypeChoice) -> EngineDType | None:
        """Return the number format that it computes in here; None: a server decides.

        Raises:
            UsageError: no model is found at the path.
        """
        if self.engine == "openai":
            return None
        device = vllm_device() if self.engine == "vllm" else "cpu"
        return dtype_for(choice, self.path, device)

    def open(self, choice: EngineDTypeChoice, memory: float, **options: Any) -> Policy:
        """Start the engine, or connect to the server; `options` are those of the policy's class."""
        if self.engine == "openai":
            from flowzoo.agents.vllm.policy import VLLMPolicy
            from flowzoo.agents.vllm.remote import connect

            return VLLMPolicy(connect(self.path, self.url), owns_engine=True, **options)
        dtype = self.dtype(choice) or "float32"
        if self.engine == "vllm":
            from flowzoo.agents.vllm.policy import VLLMPolicy
            from flowzoo.agents.vllm.settings import EngineSettings

            settings = EngineSettings(dtype=dtype, kv_gib=memory)
            return VLLMPolicy.from_pretrained(self.path, settings=settings, **options)
        from flowzoo.agents.hf.policy import TransformersPolicy

        return TransformersPolicy.from_pretrained(self.path, dtype=dtype, **options)


def named_model(
    spec: str, task: str, engine: EngineName = "transformers", endpoint: str = ""
) -> NamedModel | None:
    """The model that `spec` names by its path; None for scripts, people and plain endpoints.

    Args:
        spec: as for `make_policy`.
        task: name of the task that is played.
        engine: as for `make_policy`.
        endpoint: as for `make_policy`.

    Raises:
        UsageError: a pocket model that there is not.
    """
    kind, _, rest = spec.partition(":")
    if kind == "pocket":
        rest = str(pocket_path(*read_pocket(rest, task)))
    if kind not in ("hf", "pocket", "vllm") or not rest:
        return None
    if kind == "vllm":
        path, at, url = rest.partition("@http")
        return NamedModel(path, "openai" if at else "vllm", f"http{url}" if at else "")
    return NamedModel(rest, engine, endpoint)


def check_spec(spec: str, task: str) -> None:
    """Refuse a spec that names no policy, without loading anything.

    Args:
        spec: as for `make_policy`.
        task: name of the task that is played.

    Raises:
        UsageError: a spec of no known form, a probability that is none, a pocket model that there
            is not, or an endpoint's URL that is none.
    """
    kind, colon, rest = spec.partition(":")
    if kind == "scripted" and colon:
        chance = _probability(spec, rest)
        if not 0 <= chance <= 1:
            raise UsageError(f"expected scripted:P with P in [0, 1], got {spec!r}.")
    elif kind == "pocket":
        pocket_path(*read_pocket(rest, task))
    elif kind == "openai":
        from flowzoo.agents.openai.endpoint import chat_url

        chat_url(_endpoint(spec, rest)[1])
    elif kind in ("hf", "vllm") and rest:
        if kind == "hf" or "@http" not in rest:
            check_model(rest)
    elif spec != "human":
        raise unknown("policy", spec, FORMS)


def _endpoint(spec: str, rest: str) -> tuple[str, str]:
    """Model and URL of MODEL@URL."""
    model, _, url = rest.partition("@http")
    if not model or not url:
        raise UsageError(
            f"expected openai:MODEL@URL, e.g. openai:gpt-4o@https://host/v1, got {spec!r}."
        )
    return model, f"http{url}"


def _probability(spec: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(
            f"expected scripted:P with a probability P in [0, 1], e.g. scripted:0.8, got {spec!r}."
        ) from None
