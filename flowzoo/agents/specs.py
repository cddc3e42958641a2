"""Policies from one line of text (`FORMS`), as commands and configs name them."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from flowzoo.agents.engines import Engine, engine_names, find_engine, no_int8, plugin_engines
from flowzoo.agents.human import HumanPolicy
from flowzoo.agents.identity import ModelIdentity
from flowzoo.agents.judge import JUDGE_SAMPLING, JudgePolicy
from flowzoo.agents.openai.endpoint import Endpoint, check_receiver
from flowzoo.agents.pocket import pocket_path, read_pocket
from flowzoo.agents.policy import Policy, Sampling
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.agents.traits import EngineDType, EngineDTypeChoice
from flowzoo.envs.script import JUDGE
from flowzoo.envs.workflow import Workflow
from flowzoo.errors import UsageError, unknown
from flowzoo.files import cache_folder

FORMS = {
    "pocket": "The pocket model of the task that is played, which comes with flowzoo.",
    "pocket:TASK": "The pocket model of another task.",
    "pocket:SCALE": "The pocket model of another size: xs, s, m.",
    "pocket:TASK-SCALE": "The pocket model of another task and size.",
    "scripted:P": "Every reply does its job with probability P, no model needed.",
    "human": "The person at the terminal.",
    "hf:PATH": "A transformers model: a folder, or an id of the hub.",
    "vllm:PATH": "The same model in a vLLM engine of this process.",
    "vllm:PATH@URL": "The same model at a running `vllm serve`.",
    "openai:MODEL@URL": "Any OpenAI-compatible endpoint.",
    "openai:MODEL@NAME": "The same by its name in a file of endpoints.",
    "DIRECTORY": "The last policies of the training run in it.",
}
"""The forms of a policy, with what they mean; commands replace a DIRECTORY by its models."""


def policy_forms() -> dict[str, str]:
    """Every form of a policy with its meaning; forms of installed packages come last."""
    added = {
        f"{name}:PATH": f"The engine {name} ({engine_names()[name]})." for name in plugin_engines()
    }
    return {**FORMS, **added}


def make_policy(
    spec: str,
    *,
    oracle: Workflow | None = None,
    name: str | None = None,
    sampling: Sampling | None = None,
    seed: int = 0,
    engine: str = "transformers",
    endpoint: str = "",
    thinking: bool | None = None,
    engine_dtype: EngineDTypeChoice = "auto",
    engine_memory: float = 0.0,
    endpoints: Mapping[str, Endpoint] | None = None,
) -> Policy:
    """The policy that `spec` describes.

    Args:
        spec: one of `FORMS` except DIRECTORY, or NAME:PATH of an engine of an installed package.
        oracle: the workflow that is played; `scripted` and a `pocket` without TASK need it.
        name: name of the policy; default the spec itself.
        sampling: temperature and lengths of a model.
        seed: of a scripted policy.
        engine: name of the engine that runs `hf:PATH` and `pocket`; never replaced by another.
        endpoint: URL of the server, for an engine that is one.
        thinking: switches a model's thoughts on or off; None: its chat template's default.
        engine_dtype: number format of a model that runs here; `auto` as
            `flowzoo.agents.traits` finds it.
        engine_memory: GiB of KV cache of a vLLM engine of this process; 0: its usual size.
        endpoints: endpoints by name (`flowzoo.agents.openai.endpoint.read_endpoints`).

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

        model, server = read_endpoint(spec, endpoints or {})
        return OpenAIPolicy(model, server, name=label, sampling=sampling, thinking=thinking)
    raise _unknown_policy(spec)


def make_judge(
    spec: str,
    workflow: Workflow,
    *,
    thinking: bool | None = None,
    sampling: Sampling = JUDGE_SAMPLING,
    endpoints: Mapping[str, Endpoint] | None = None,
    **options: Any,
) -> JudgePolicy:
    """The judge that `spec` describes, opened when it is first asked.

    Replies are kept in `judge.sqlite` of the cache folder, but for a script's, by the digest of the
    model's identity (of an endpoint: its name), sampling, thinking switch and chat.
    `endpoints` has endpoints by name; `options` are `engine`, `endpoint`, `engine_dtype`,
    `engine_memory` and `seed` of `make_policy`.
    """
    task, name, kind = workflow.task.name, f"{JUDGE} ({spec})", spec.partition(":")[0]
    check_spec(spec, task, endpoints)
    choice = {key: options[key] for key in ("engine", "endpoint") if key in options}
    model = named_model(spec, task, **choice)
    source, priced = spec, model.path if model and model.url else spec
    if kind == "openai":
        priced, server = read_endpoint(spec, endpoints or {})
        source = f"openai:{priced}@{server.url}"
        if server.extra_body:
            source += f" {json.dumps(server.extra_body, sort_keys=True)}"

    def identity() -> str:
        if model is None:
            return f"{source}  {thinking}"
        record, dtype = model.identity(), options.get("engine_dtype", "auto")
        weights = record.digest if record else f"{model.path} {model.url}"
        return f"{weights} {model.engine.name} {dtype} {thinking}"

    open_policy = partial(
        make_policy,
        spec,
        oracle=workflow,
        name=name,
        sampling=sampling,
        thinking=thinking,
        endpoints=endpoints,
        **options,
    )
    return JudgePolicy(
        name,
        open_policy,
        identity=identity,
        cache=None if kind == "scripted" else cache_folder() / "judge.sqlite",
        sampling=None if kind in ("scripted", "human") else sampling,
        batching="stream" if model is None or model.engine.traits.batches_itself else "static",
        model=priced,
    )


class NamedModel(NamedTuple):
    """A model that a spec names by its path, and the engine that runs it."""

    path: str
    engine: Engine
    url: str
    """Address of the server, for an engine that is one."""

    def dtype(self, choice: EngineDTypeChoice) -> EngineDType | None:
        """Return the number format that it computes in; None: the engine does not say."""
        if choice == "int8" and not self.engine.traits.int8:
            raise UsageError(no_int8(self.engine.name))
        return self.engine.dtype(choice, self.path)

    def identity(self) -> ModelIdentity | None:
        """Return the model's identity; None: the engine does not say."""
        return self.engine.identity(self.path)

    def open(self, choice: EngineDTypeChoice, memory: float, **options: Any) -> Policy:
        """Start the engine, or connect to the server; `options` go to its policy."""
        return self.engine.open(
            self.path, dtype=self.dtype(choice), cache_gib=memory, url=self.url, **options
        )


def named_model(
    spec: str, task: str, engine: str = "transformers", endpoint: str = ""
) -> NamedModel | None:
    """The model that `spec` names by its path; None for scripts, people and plain endpoints."""
    kind, _, rest = spec.partition(":")
    if kind == "pocket":
        rest = str(pocket_path(*read_pocket(rest, task)))
    if not rest:
        return None
    if kind in ("hf", "pocket"):
        return NamedModel(rest, find_engine(engine), endpoint)
    if kind != "vllm" and kind not in plugin_engines():
        return None
    path, at, url = rest.partition("@http")
    runs = "openai" if kind == "vllm" and at else kind
    return NamedModel(path, find_engine(runs), f"http{url}" if at else "")


def check_spec(spec: str, task: str, endpoints: Mapping[str, Endpoint] | None = None) -> None:
    """Refuse a spec that names no policy, without loading anything; see `make_policy`."""
    kind, colon, rest = spec.partition(":")
    if kind == "scripted" and colon:
        if not 0 <= _probability(spec, rest) <= 1:
            raise UsageError(f"expected scripted:P with P in [0, 1], got {spec!r}.")
    elif kind == "openai":
        read_endpoint(spec, endpoints or {})
    elif spec != "human":
        model = named_model(spec, task)
        if model is None:
            raise _unknown_policy(spec)
        model.engine.check(model.path)


def read_endpoint(spec: str, endpoints: Mapping[str, Endpoint]) -> tuple[str, Endpoint]:
    """Model and endpoint of openai:MODEL@URL, or of openai:MODEL@NAME by a name in `endpoints`."""
    rest = spec.partition(":")[2]
    model, _, url = rest.partition("@http")
    if model and url:
        endpoint = Endpoint(f"http{url}")
        check_receiver(endpoint.url, endpoint.api_key_env)
        return model, endpoint
    model, at, name = rest.rpartition("@")
    if not at or not model or not name:
        raise UsageError(
            f"expected openai:MODEL@URL, e.g. openai:gpt-4o@https://host/v1, got {spec!r}."
        )
    if name not in endpoints:
        raise unknown("endpoint", name, endpoints, "or a URL: openai:MODEL@https://host/v1")
    return model, endpoints[name]


def _unknown_policy(spec: str) -> UsageError:
    folder = Path(spec)
    if folder.is_dir() and not (folder / "run.json").exists():
        return UsageError(
            f"policy {spec!r}: the folder holds no run (it has no run.json): name the directory of "
            f"a training run, or a model's folder as hf:{spec}"
        )
    if "/" in spec and ":" not in spec and not folder.exists():
        return UsageError(
            f"policy {spec!r}: there is no folder {spec}: name the directory of a training run, or "
            "a model as hf:PATH"
        )
    return unknown("policy", spec, policy_forms())


def _probability(spec: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(
            f"expected scripted:P with a probability P in [0, 1], e.g. scripted:0.8, got {spec!r}."
        ) from None
