"""Policy options of a command line, and their policy map."""

import asyncio
import math
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flowzoo.agents import PolicyMap, Sampling
from flowzoo.agents.chat.template import read_thinking
from flowzoo.agents.engines import find_engine
from flowzoo.agents.identity import accept_base
from flowzoo.agents.judge import JUDGE_SAMPLING
from flowzoo.agents.openai.endpoint import Endpoint, read_endpoints
from flowzoo.agents.policy import Policy
from flowzoo.agents.policy_map import read_lengths, role_of, with_default
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.agents.specs import NamedModel, check_spec, make_judge, make_policy, named_model
from flowzoo.agents.traits import EngineDTypeChoice, ModelTraits, reply_budget
from flowzoo.baselines.run.manifest import find_checkpoint
from flowzoo.commands.progress.shown import to_stderr
from flowzoo.commands.shared import quiet_transformers
from flowzoo.envs import Workflow
from flowzoo.envs.script import JUDGE
from flowzoo.envs.workflow import Roles
from flowzoo.errors import UsageError, unknown
from flowzoo.files import read_json

# Specs may contain "=", e.g. in a URL's query, so a role is recognized by its format: role or
# role_N.
_FOR_ROLE = re.compile(r"(?:([a-z]+(?:_[a-z]+)*(?:_\d+)?)=)?(.+)", re.DOTALL)
_WITHOUT_MODEL = ("scripted", "openai", "human")
"""Policies that do not need a model library."""
_FEW_TOKENS = 256
"""Reply budget of policies without a model and of pocket models."""


def split_role(word: str) -> tuple[str, str]:
    """Role and spec of ROLE=POLICY; the role is empty for a POLICY alone."""
    match = _FOR_ROLE.fullmatch(word)
    return (match[1] or "", match[2]) if match else ("", word)


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """Policies and sampling."""

    policy: tuple[str, ...] = ("pocket",)
    """One policy for all roles, or several ROLE=POLICY; judge=POLICY is a workflow's judge, which
    decodes greedily and caches its replies. Policies: pocket (the task's pocket model; for another
    task or size pocket:TASK, pocket:SCALE, pocket:TASK-SCALE), scripted:P (right with probability
    P), hf:PATH, vllm:PATH, vllm:PATH@URL (a running `vllm serve`), openai:MODEL@URL or, with a name
    from --endpoints, openai:MODEL@NAME, human (you, at this terminal), or the directory of a
    training run (its last policy of the role; without ROLE=, of all roles that have none)."""
    endpoints: Path | None = None
    """TOML file of endpoints: a table per name with `url` and, as needed, `api_key_env`, `headers`,
    `extra_body`, `concurrency`, `timeout`, `retries`, `requests_per_minute`, `tokens_per_minute`,
    `without` and `cache`."""
    engine: str = "transformers"
    """Engine of `pocket` and `hf:PATH`: transformers, vllm (in this process), openai (the server at
    `endpoint`), or an engine of an installed package. No engine falls back to another."""
    endpoint: str = ""
    """URL of a running `vllm serve` for `engine=openai`, e.g. http://localhost:8000/v1."""
    engine_dtype: EngineDTypeChoice = "auto"
    """Number format for sampling from local models. `auto`: bfloat16 if the hardware supports it
    and the model has 100 million weights or more, else float32; printed in the last lines."""
    engine_memory: float = 0.0
    """GiB of KV cache of all vLLM engines of this process together; 0: on a GPU a fraction of its
    memory; on a CPU 0.25 per engine, or the size of one sequence of the model's whole context if
    that is larger."""
    temperature: float | None = None
    """Sampling temperature; 0: greedy decoding. Default: 1, or that of a published set (`flowzoo
    eval --sets`)."""
    top_p: float | None = None
    """Nucleus sampling: sample from the smallest set of tokens with at least this probability.
    Default: 1, all tokens, or that of a published set."""
    top_k: int | None = None
    """Sample from this many most likely tokens. Default: 0, all tokens, or that of a published
    set."""
    max_tokens: int | None = None
    """Most tokens of a reply, except for roles in `lengths`. Default: by the task (128 to 1024)
    within the model's limits, 4096 for thinking models; 256 for pocket models and policies without
    a model."""
    lengths: tuple[str, ...] = ()
    """Token budgets of individual roles, as ROLE=PROMPT/REPLY, e.g. aggregator=4096/512 or
    aggregator=/512. A prompt over its budget is shortened: quotes first, the problem last."""
    thinking: tuple[str, ...] = ()
    """Thinking before the answer: `on`, `off`, or ROLE=on, ROLE=off for individual roles; default:
    the chat template's default."""
    accept_base: bool = False
    """Play adapters whose base has changed, with their own tokenizer, chat template and end
    tokens."""

    def __post_init__(self) -> None:
        # A role that is named wins over a run's, so that `RUN role=POLICY` plays the run's others.
        named = {role for role, _ in map(split_role, self.policy) if role}
        specs = [
            spec
            for word in self.policy
            for spec in without_run(word)
            if split_role(word)[0] or split_role(spec)[0] not in named
        ]
        if self.accept_base:
            specs = list(map(_with_base, specs))
        object.__setattr__(self, "policy", tuple(specs))

    def endpoint_table(self) -> dict[str, Endpoint]:
        """Endpoints by name."""
        return {} if self.endpoints is None else read_endpoints(self.endpoints)

    def sampling(self, max_tokens: int) -> Sampling:
        """The sampling of the options, for replies of at most `max_tokens`."""
        given = {name: getattr(self, name) for name in ("temperature", "top_p", "top_k")}
        values = {name: value for name, value in given.items() if value is not None}
        return Sampling(**values, max_tokens=max_tokens)

    @property
    def specs(self) -> list[str]:
        """The policy specs without roles."""
        return [spec for _, spec in map(split_role, self.policy)]

    def by_role(self, roles: Collection[str], judge: bool = False) -> dict[str, str]:
        """Policy spec by role or agent; with `judge`, also for the key `judge`."""
        names = [*roles, JUDGE] if judge else list(roles)
        given: dict[str, str] = {}
        rest: list[str] = []
        for role, spec in map(split_role, self.policy):
            if not role:
                rest.append(spec)
                continue
            if role == JUDGE and role not in names:
                raise UsageError(
                    "--policy judge=... is for workflows with a judge (`asks_judge`), but this "
                    f"one has none; its roles are {', '.join(names)}"
                )
            if role_of(role) not in names:
                raise unknown("role", role, names)
            if role in given:
                raise UsageError(
                    f"--policy gives role {role!r} twice: {given[role]!r} and {spec!r}."
                )
            given[role] = spec
        if len(rest) > 1:
            raise UsageError(
                f"--policy must be one policy for all roles or ROLE=POLICY for each, got {rest} "
                f"without roles; the roles are {', '.join(names)}."
            )
        # A spec without a role applies to all unnamed roles; a judge must be named.
        return {role: rest[0] for role in roles if rest and role not in given} | given


def _with_base(word: str) -> str:
    # An adapter as one on its base as that is now.
    role, spec = split_role(word)
    kind, _, path = spec.partition(":")
    return f"{role}{'=' if role else ''}hf:{accept_base(path)}" if kind == "hf" else word


def without_run(word: str) -> list[str]:
    """Replace a run directory in a policy argument by its models."""
    role, spec = split_role(word)
    folder = Path(spec)
    if not (folder / "run.json").is_file():
        return [word]
    info = find_checkpoint(folder, "last")
    sharing = read_json(folder / "run.json")["settings"].get("sharing") or ()
    names = dict(part.split("=") for part in sharing if "=" in part)
    if not names:  # shared by all roles, or a policy with the name of each
        names = {"" if name == "shared" else name: name for name in (*info.policies, *info.frozen)}
    if role:
        key = next((key for key in (role, role_of(role), "") if key in names), None)
        if key is None:
            raise unknown(f"role of the run {folder}", role, names)
        names = {role: names[key]}
    specs = {key: f"hf:{info.player_path(name)}" for key, name in names.items()}
    return [f"{key}={spec}" if key else spec for key, spec in specs.items()]


def specs_by_role(workflow: Workflow, policies: PolicyOptions) -> dict[str, str]:
    """Policy spec by role or agent, and by `judge` if the workflow has one."""
    return policies.by_role(workflow.role_counts(), workflow.needs_judge)


def with_judge(workflow: Workflow) -> Roles:
    """The workflow's roles, and `judge` if it has one."""
    roles = dict(workflow.role_counts())
    return {**roles, JUDGE: 1} if workflow.needs_judge else roles


def check_policy_map(workflow: Workflow, policies: PolicyOptions) -> None:
    """Check the policies before a model library is loaded."""
    if find_engine(policies.engine).traits.server != bool(policies.endpoint):
        raise UsageError(
            "--engine openai and --endpoint belong together, got "
            f"--engine {policies.engine} and --endpoint {policies.endpoint!r}."
        )
    roles, by_role = with_judge(workflow), specs_by_role(workflow, policies)
    reply = _FEW_TOKENS if policies.max_tokens is None else policies.max_tokens
    _, longest = with_default(read_lengths(policies.lengths, roles), roles, reply)
    policies.sampling(longest)
    read_thinking(policies.thinking, by_role)
    endpoints = policies.endpoint_table()
    for spec in by_role.values():
        check_spec(spec, workflow.task.name, endpoints)
    engines = [model.engine.traits for model in models_of(workflow, policies).values()]
    if policies.engine_memory < 0:
        raise UsageError(f"--engine-memory must be at least 0, got {policies.engine_memory:g}")
    if policies.engine_memory and not any(traits.sized_cache for traits in engines):
        raise UsageError(
            "--engine-memory is for vLLM in this process, but no policy uses it: add "
            "--engine vllm, or leave it out"
        )
    if policies.engine_dtype != "auto" and all(traits.server for traits in engines):
        raise UsageError(
            "--engine-dtype is for models in this process, but no policy names one: leave it out "
            "(a server sets its own number format)"
        )
    expert = ScriptedPolicy(workflow)
    has_judge = workflow.needs_judge and by_role.pop(JUDGE, None) is not None
    expert_map = PolicyMap(dict.fromkeys(by_role, expert), judge=expert if has_judge else None)
    expert_map.check(workflow.role_counts(), workflow.needs_judge)


def with_budget(
    workflow: Workflow, policies: PolicyOptions, before: Mapping[str, Any] | None = None
) -> PolicyOptions:
    """Options with a reply budget; a default from task and models is printed."""
    # `before`: options of the continued evaluation, whose budget is kept.
    if policies.max_tokens is not None:
        return policies
    if before and before.get("max_tokens"):
        return replace(policies, max_tokens=before["max_tokens"])
    by_role = specs_by_role(workflow, policies)
    switches = read_thinking(policies.thinking, by_role)
    if workflow.needs_judge:
        by_role.pop(JUDGE, None)  # it has a separate budget
    models: list[ModelTraits] = []
    named = models_of(workflow, policies)
    for spec in by_role.values():
        if spec.partition(":")[0] in ("scripted", "human", "pocket"):
            models.append(ModelTraits())
        elif spec not in named or named[spec].engine.traits.server:
            models.append(ModelTraits(math.inf))  # the model of a server is unknown
        else:
            quiet_transformers()
            models.append(named[spec].engine.model_traits(named[spec].path))
    task = workflow.task.reply_tokens
    if any(math.isinf(model.weights) for model in models):
        task = max(task, _FEW_TOKENS)  # a server may also count thoughts
    budget = reply_budget(models, [switches[role] for role in by_role], task, _FEW_TOKENS)
    if any(model.weights for model in models):
        to_stderr(f"max_tokens {budget.tokens} (from {budget.source})")
    return replace(policies, max_tokens=budget.tokens)


def models_of(workflow: Workflow, policies: PolicyOptions) -> dict[str, NamedModel]:
    """Paths of local models by spec."""
    models = {
        spec: named_model(spec, workflow.task.name, policies.engine, policies.endpoint)
        for spec in sorted(set(specs_by_role(workflow, policies).values()))
    }
    return {spec: model for spec, model in models.items() if model is not None}


def engine_dtypes(workflow: Workflow, policies: PolicyOptions) -> dict[str, str]:
    """Number formats of the models in this process, by spec; nothing is loaded."""
    models = models_of(workflow, policies).items()
    dtypes = {spec: model.dtype(policies.engine_dtype) for spec, model in models}
    return {spec: dtype for spec, dtype in dtypes.items() if dtype is not None}


def model_records(workflow: Workflow, policies: PolicyOptions) -> dict[str, Any]:
    """Identities of the models in this process, by spec."""
    models = models_of(workflow, policies).items()
    identities = {spec: model.identity() for spec, model in models}
    return {spec: asdict(record) for spec, record in identities.items() if record is not None}


@contextmanager
def open_policy_map(workflow: Workflow, policies: PolicyOptions, seed: int) -> Iterator[PolicyMap]:
    """Context manager with the policy map of the options; it ends the engines."""
    policy_map = build_policy_map(workflow, policies, seed)
    try:
        yield policy_map
    finally:
        for policy in policy_map.policies.values():
            asyncio.run(policy.close())


def build_policy_map(workflow: Workflow, policies: PolicyOptions, seed: int) -> PolicyMap:
    """Build the policy map of the options, a policy per distinct spec and switch."""
    check_policy_map(workflow, policies)
    by_role, roles = specs_by_role(workflow, policies), workflow.role_counts()
    if any(spec.partition(":")[0] not in _WITHOUT_MODEL for spec in by_role.values()):
        quiet_transformers()
    reply = with_budget(workflow, policies).max_tokens
    assert reply is not None
    given = read_lengths(policies.lengths, with_judge(workflow))
    judge_lengths = given.pop(JUDGE, None) if workflow.needs_judge else None
    lengths, longest = with_default(given, roles, reply)
    sampling = policies.sampling(longest)
    switches = read_thinking(policies.thinking, by_role)
    judge = by_role.pop(JUDGE, None) if workflow.needs_judge else None
    pairs = {role: (spec, switches[role]) for role, spec in by_role.items()}
    # An engine for every pair, and one for the judge.
    specs = [spec for spec, _ in set(pairs.values())] + ([] if judge is None else [judge])
    models = models_of(workflow, policies)
    caches = sum(spec in models and models[spec].engine.traits.sized_cache for spec in specs)
    settings: dict[str, Any] = {
        name: getattr(policies, name) for name in ("engine", "endpoint", "engine_dtype")
    }
    settings["engine_memory"] = policies.engine_memory / max(1, caches)
    settings |= {"endpoints": policies.endpoint_table(), "seed": seed}
    by_pair: dict[tuple[str, bool | None], Policy] = {}
    for spec, thinking in sorted(set(pairs.values()), key=str):
        is_taken = any(other == spec for other, _ in by_pair)
        name = f"{spec} (thinking: {thinking})" if is_taken else None
        by_pair[spec, thinking] = make_policy(
            spec, oracle=workflow, name=name, sampling=sampling, thinking=thinking, **settings
        )
    opened = None
    if judge is not None:
        greedy = JUDGE_SAMPLING
        if judge_lengths is not None:
            lengths[JUDGE] = judge_lengths
            greedy = replace(greedy, max_tokens=judge_lengths.reply or greedy.max_tokens)
        opened = make_judge(judge, workflow, thinking=switches[JUDGE], sampling=greedy, **settings)
        opened.opened()
    policy_map = PolicyMap({role: by_pair[pair] for role, pair in pairs.items()}, lengths, opened)
    policy_map.check(roles, workflow.needs_judge)
    return policy_map
