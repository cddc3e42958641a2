"""Memory of a run on GPUs, in every layout, and what it follows from on a CPU."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.plan.activations import Activations, UncountedError, count_activations
from benchmarks.plan.memory import (
    EngineBytes,
    LearnerMemory,
    gpus_of_each,
    learner_memory,
    with_cache,
)
from benchmarks.plan.models import ModelFolders, files_bytes, has_tokenizer
from benchmarks.plan.shape import ModelShape, read_config, shape_of
from benchmarks.plan.step_rows import step_rows
from flowzoo.agents.policy_map import agent_names
from flowzoo.agents.vllm.settings import BYTES, cache_bytes
from flowzoo.baselines.learner.lora import LoraSettings
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.options import RANKS, RAY, Sharding
from flowzoo.baselines.settings.policies import LearnerGroupPlan, of_policy, plan_learner_groups
from flowzoo.baselines.settings.preflight import with_prompts
from flowzoo.baselines.settings.rules import check, learner_rules, sharding_rules
from flowzoo.baselines.training.plan import RunPlan, resolve
from flowzoo.declared import conditions
from flowzoo.envs.records import Call
from flowzoo.envs.settings import read_named
from flowzoo.errors import UsageError

Training = Literal["full", "lora"]
Where = Literal["transformers", "colocated", "split", "split, own GPUs"]

SPARE = 0.1
"""Share of a GPU that is left free for memory that is not counted; see `memory`."""
USUAL_RANK = 16
"""Rank of adapters in a plan for settings without adapters."""
_BLOCK = 16
"""Tokens of a block of vLLM's cache on a GPU."""
_OF_DATA = ("data", "layout", "columns", "digest", "corpus", "column")
"""Options of tasks that name or describe files of problems."""
_ON_DATA = 1024
"""Most tokens that replies to the problems of a file take; see `Task.reply_tokens`."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A placement of a run, and the bytes on its fullest GPU by engine."""

    training: Training
    shard: Sharding
    ranks: int
    learner: int
    """Bytes of all learners on one GPU, at the worst moment."""
    needs: Mapping[Where, int]
    """Bytes by placement of the engine, without impossible ones."""
    engine_gpus: int = 1
    """GPUs over which an engine on separate GPUs is spread."""
    counted: bool = True
    """True if the numbers include the learner's activations."""


def layout_fits(layout: Layout, where: Where, room: int) -> bool | None:
    """True if GPUs of which `room` bytes may be used hold a layout; None: not known."""
    if layout.needs[where] > room:
        return False
    return True if layout.counted else None


class RunSizes:
    """A run's settings with the shapes of its models, from which everything is counted.

    Models may be shapes alone.
    """

    def __init__(self, config: TrainConfig, *, cpu: bool = False) -> None:
        """Resolve the settings, for a GPU or one process on this CPU."""
        self.asked = config
        """The settings as they were given."""
        with tempfile.TemporaryDirectory() as room:
            folders = ModelFolders(Path(room))
            there, paths, reply_tokens = place_run(config, folders.find, data=cpu)
            # The device decides the number formats.
            there = replace(there, device="cpu" if cpu else "cuda")
            self.plan: RunPlan = resolve(there, reply_tokens=reply_tokens)
            named = read_named(config.models, self.plan.names, "models")
            self.models = {name: named.get(name, config.model) for name in self.plan.names}
            """Model by policy, as the settings name it."""
            self.configs: Mapping[str, Any] = {
                model: read_config(paths[model]) for model in set(self.models.values())
            }
            self.files: Mapping[str, int] = {
                model: files_bytes(folder) for model, folder in folders.paths.items()
            }
            """Bytes of the files of weights, by model."""
            self.tokenizers = [str(path) for path in folders.paths.values() if has_tokenizer(path)]
            """Folders of the tokenizers that are on this machine."""
            self.rows: Sequence[Call] = ()
            """Rows of the first step of a run on this CPU."""
            if cpu:
                self.rows = step_rows(
                    self.plan,
                    {name: str(paths[model]) for name, model in self.models.items()},
                    {name: self.configs[model] for name, model in self.models.items()},
                )
        self.lent: set[str] = folders.lent if config.max_tokens is None else set()
        """Models without a tokenizer, which are taken not to think."""
        self.config = replace(
            self.plan.config, device=config.device, model=config.model, models=config.models
        )
        policies = {name: of_policy(config, name) for name in self.models}
        self.learner_groups = plan_learner_groups(config, policies, self.models)
        self._shapes = {m: shape_of(c, config.lora_targets) for m, c in self.configs.items()}
        self._activations: dict[tuple[str, Training, int], Activations | None] = {}
        self.uncounted: dict[str, str] = {}
        """Reason why the activations are unknown, by model."""

    def shape(self, policy: str) -> ModelShape:
        """Shape of a policy's model."""
        return self._shapes[self.models[policy]]

    def activations(self, policy: str, training: Training) -> Activations | None:
        """Count the bytes that a policy's backward pass keeps; None: see `uncounted`."""
        key = self.models[policy], training, self.rank(policy)
        if key not in self._activations:
            config = self.config
            lora = LoraSettings(self.rank(policy))
            try:
                self._activations[key] = count_activations(
                    self.configs[key[0]],
                    lora if training == "lora" else None,
                    config.weights,
                    config.compute or "float32",
                )
            except UncountedError as error:
                self._activations[key] = None
                self.uncounted[key[0]] = str(error)
        return self._activations[key]

    def separate_models(self, training: Training) -> list[str]:
        """A policy of each model in memory: adapters and frozen policies share theirs."""
        policies: dict[tuple[str, str], str] = {}
        for name in self.plan.names:
            alone = training == "full" and name in self.trained
            policies.setdefault((self.models[name], name if alone else ""), name)
        return list(policies.values())

    @property
    def trained(self) -> list[str]:
        """The policies that are trained."""
        return [name for name in self.plan.names if name not in self.config.frozen]

    @property
    def training(self) -> Training:
        """Trained weights by the settings.

        Raises:
            UsageError: policies that differ in it, for which nothing is estimated.
        """
        ranks = [of_policy(self.config, name).lora_rank for name in self.trained]
        if any(ranks) != all(ranks):
            raise UsageError(
                "the plan is for adapters of all policies or of none, and `lora_rank` is 0 for "
                "some and above 0 for others: give all one or none"
            )
        return "lora" if all(ranks) else "full"

    def rank(self, policy: str) -> int:
        """Rank of a policy's adapter: the settings', or the usual one."""
        return of_policy(self.config, policy).lora_rank or USUAL_RANK

    def roles(self, policy: str) -> int:
        """Roles that a policy answers for."""
        return len({role for role, name in self.plan.policies.items() if name == policy})

    def learner(
        self, policy: str, training: Training, ranks: int = 1, shard: Sharding = "none"
    ) -> LearnerMemory:
        """Memory of one policy's learner on each GPU."""
        shape = self.shape(policy)
        config = self.plan.learners[policy]
        longest = max(config.microbatch_tokens, self.sequence)  # a longer row stands alone
        return learner_memory(
            shape,
            self.activations(policy, training),
            replace(config, microbatch_tokens=longest),
            adapter=shape.adapter(self.rank(policy)) if training == "lora" else 0,
            roles=self.roles(policy),
            ranks=ranks,
            shard=shard,
        )

    def learners(self, training: Training, ranks: int, shard: Sharding) -> int:
        """Bytes of all learners on one GPU: adapters of a model share it, one learns at a time."""
        return sum(self.together(training, ranks, shard, self.plan.names))

    def held(self, training: Training, ranks: int, shard: Sharding) -> int:
        """Bytes of all learners on one GPU while none of them learns."""
        return self.together(training, ranks, shard, self.plan.names)[0]

    def together(
        self, training: Training, ranks: int, shard: Sharding, names: Sequence[str]
    ) -> tuple[int, int]:
        """Bytes of the learners of policies all the time, and the most that learning adds."""
        # Policies learn one after another, so gradients and activations are counted once.
        held, most, seen = 0, 0, set[str]()
        for name in names:
            size = 2 if self.config.weights == "bfloat16" else 4
            if name in self.config.frozen:
                if (self.models[name]) not in seen:
                    held += self.shape(name).parameters * size
                    seen.add(self.models[name])
                continue
            learner = self.learner(name, training, ranks, shard)
            size = sum(learner.held.values())
            most = max(most, learner.peak - size)
            # Adapters of one model share its weights.
            if training == "lora" and self.models[name] in seen:
                size -= learner.held["weights"]
            seen.add(self.models[name])
            held += size
        return held, most

    def engines(self, training: Training, block: int = _BLOCK) -> list[EngineBytes]:
        """The engines: one for each base of adapters, else each policy.

        Each has at least the cache of its longest sequence, in blocks of `block` tokens.
        """
        size = BYTES[self.config.resolved_dtype]
        parts: dict[str, EngineBytes] = {}
        for name in self.plan.names:
            model = self.models[name]
            lora = training == "lora"
            base = model if lora or name in self.config.frozen else name
            if base not in parts:
                text = self.configs[model].get_text_config(decoder=True)
                heads = getattr(text, "num_attention_heads", None) or 1
                cache = cache_bytes(
                    self.configs[model], self.config.resolved_dtype, self.longest(name), block
                )
                groups = getattr(text, "num_key_value_heads", None) or heads
                weights = size * self.shape(name).parameters
                parts[base] = EngineBytes(weights, cache, heads, groups)
            if lora and name in self.trained:
                adapter = size * self.shape(name).adapter(self.rank(name))
                parts[base] = parts[base]._replace(weights=parts[base].weights + adapter)
        return list(parts.values())

    def engine_weights(self, training: Training) -> int:
        """Bytes of the weights of all engines."""
        return sum(engine.weights for engine in self.engines(training))

    def least_cache(self, training: Training, block: int = _BLOCK) -> int:
        """Bytes of cache without which the engines do not start."""
        return sum(engine.cache for engine in self.engines(training, block))

    def longest(self, policy: str) -> int:
        """Tokens of the longest sequence that a policy's engine takes."""
        context, bound = self.shape(policy).context, self.config.longest_sequence
        return min(context, bound) if bound and context else context or bound

    def layout(
        self, training: Training, ranks: int, shard: Sharding, gpus: int, bytes_each: int
    ) -> Layout:
        """A layout on the first `ranks` of `gpus` GPUs of `bytes_each` bytes."""
        learners = self.learners(training, ranks, shard)
        engines = self.engines(training)
        cache = self.config.engine_memory or None
        engine = with_cache(engines, bytes_each, cache)
        needs: dict[Where, int] = {}
        # A sharded module cannot sample.
        if shard == "none":
            needs["transformers"] = max(learners, self._sampling(training))
        # Ranks refuse an engine in their own process.
        if ranks == 1:
            sleeps = self.config.engine_sleep
            held = self.held(training, ranks, shard)
            needs["colocated"] = max(learners, held + engine) if sleeps else learners + engine
        needs["split"] = learners + engine
        given = int(self.asked.rollout_gpus)
        spread = gpus_of_each(engines, gpus - ranks, int((1 - SPARE) * bytes_each), given)
        if spread > 1:
            share = cache and cache / len(engines)
            alone = max(with_cache([engine], bytes_each, share, spread) for engine in engines)
            needs["split, own GPUs"] = max(learners, alone)
        elif 2 * ranks <= gpus:
            needs["split, own GPUs"] = max(learners, engine)
        counted = all(self.activations(name, training) is not None for name in self.trained)
        return Layout(training, shard, ranks, learners, needs, spread, counted)

    def _sampling(self, training: Training) -> int:
        """Bytes while the learners' own modules sample: a cache for the sequences of a batch."""
        config = self.config
        cache = max(self.shape(name).cache for name in self.plan.names)
        size = BYTES[config.module_dtype]
        sequences = min(config.max_batch, self.episodes * max(self.agents.values()))
        return self.held(training, 1, "none") + sequences * self.sequence * cache * size

    @property
    def agents(self) -> Mapping[str, int]:
        """Number of agents by role."""
        roles = self.plan.workflow.role_counts()
        return {role: len(agent_names({role: agents})) for role, agents in roles.items()}

    @property
    def sequence(self) -> int:
        """Tokens of the longest reply, and of the longest prompt where the settings bound it."""
        prompts = [lengths.prompt or 0 for lengths in self.plan.budgets.roles.values()]
        return self.plan.budgets.reply + max(prompts, default=0)

    @property
    def episodes(self) -> int:
        """Episodes of a step."""
        return self.config.problems * self.plan.samples

    @property
    def unsharded(self) -> str:
        """Reason why a run refuses `shard` full with these settings, or empty."""
        try:
            check(sharding_rules(self.config))
            for name in self.trained:
                check(learner_rules(replace(of_policy(self.config, name), shard="full")))
        except UsageError as error:
            return str(error)
        return ""

    def learner_group(self, group: LearnerGroupPlan) -> int:
        """Bytes of the learners of a learner group on the GPU of each of its workers."""
        return sum(self.together(self.training, group.workers, self.asked.shard, group.policies))

    def layouts(self, gpus: int, bytes_each: int) -> list[Layout]:
        """List the layouts that `gpus` GPUs of `bytes_each` bytes allow."""
        kinds: tuple[Training, ...] = ("full", "lora")
        return [
            self.layout(training, ranks, shard, gpus, bytes_each)
            for training in kinds
            for ranks in self._ranks(gpus)
            for shard in (("none", "full") if ranks > 1 else ("none",))
        ]

    def _ranks(self, gpus: int) -> list[int]:
        powers = {2**power for power in range(gpus.bit_length())}
        return sorted(count for count in powers | {gpus, self.asked.ranks or 1} if count <= gpus)

    def sync_bytes(self, policy: str) -> dict[Training, int]:
        """Bytes that go to an engine after an update of a policy; a tied head goes twice."""
        shape = self.shape(policy)
        sent = shape.parameters + shape.head * shape.tied
        size = 2 if self.config.weights == "bfloat16" else 4
        if self.config.placement == "split":
            size = BYTES[self.config.resolved_dtype]
        return {"full": sent * size, "lora": shape.adapter(self.rank(policy)) * 4}


# -- a run that can be resolved on this machine ----------------------------------------------------


def place_run(
    config: TrainConfig, find_folder: Callable[[str, str], Path], *, data: bool = False
) -> tuple[TrainConfig, Mapping[str, Path], int | None]:
    """Place a run on models that are on this machine, in one process.

    `find_folder` finds the folder of a model, by its name and that of the task. Problems are
    generated, or with `data` read from the run's files.

    Returns:
        The settings; folders with a configuration and a tokenizer, by model as the settings name
        it; the longest reply to a task on data, which is not read, or None: by the task.
    """
    # Memory is counted without workers and whole models.
    alone = in_one_process(config)
    alone = alone if data else without_data(alone)
    task = with_prompts(alone)[0].task.name
    named = {word.partition("=")[0]: word.partition("=")[2] for word in alone.models}
    folders = {model: find_folder(model, task) for model in sorted({alone.model, *named.values()})}
    sources = {
        model: model if model.partition(":")[0] == "pocket" else str(folder)
        for model, folder in folders.items()
    }
    placed = replace(
        alone,
        model=sources[alone.model],
        models=tuple(f"{name}={sources[model]}" for name, model in named.items()),
    )
    return placed, folders, None if alone.options == config.options else _ON_DATA


def in_one_process(config: TrainConfig) -> TrainConfig:
    """Settings of a run that does the same in this process alone."""
    defaults: dict[str, Any] = {
        name: getattr(TrainConfig, name)
        for name, condition in conditions(TrainConfig).items()
        if condition in (RANKS, RAY)
    }
    return replace(
        config, **defaults, backend="local", shard="none", max_staleness=0, engine_devices="",
        weight_transfer="file",
    )  # fmt: skip


def without_data(config: TrainConfig) -> TrainConfig:
    """Return the settings on generated problems, for which nothing is loaded."""
    names = [word.partition("=")[0] for word in config.options]
    if "data" not in names:
        return config
    pairs = zip(names, config.options, strict=True)
    options = tuple(option for name, option in pairs if name not in _OF_DATA)
    return replace(config, options=options)
