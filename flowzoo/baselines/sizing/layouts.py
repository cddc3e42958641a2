"""Which layouts of learner and engine fit which GPUs, and what a run of them moves and takes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from flowzoo.agents.names import agent_names
from flowzoo.agents.vllm.cache import BYTES, cache_bytes
from flowzoo.agents.vllm.settings import EngineSettings
from flowzoo.baselines.learner.lora import LoraSettings
from flowzoo.baselines.plan import RunPlan, resolve
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.early import make_training_workflow
from flowzoo.baselines.settings.learner_gangs import GangPlan, plan_gangs
from flowzoo.baselines.settings.policy_map import per_policy
from flowzoo.baselines.settings.scale import Sharding
from flowzoo.baselines.settings.scale_checks import in_one_process
from flowzoo.baselines.settings.sequence import longest_sequence
from flowzoo.baselines.sizing.activations import Activations, count_activations
from flowzoo.baselines.sizing.memory import GIB, LearnerMemory, learner_memory
from flowzoo.baselines.sizing.shape import ModelShape, read_config, shape_of
from flowzoo.baselines.sizing.source import files_bytes, model_folder

Training = Literal["full", "lora"]
Where = Literal["transformers", "colocated", "split", "split, own GPUs"]

RANKS = (1, 2, 4, 8)
USUAL_RANK = 16
"""Of the adapters in a plan for settings that have none."""
SPARE = 0.1
"""Share of a GPU that is left free for what is not counted (see `memory`)."""
_BLOCK = 16
"""Tokens of a block of vLLM's cache on a GPU."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A way to place a run, and the bytes that its fullest GPU has to hold with each engine."""

    training: Training
    shard: Sharding
    ranks: int
    learner: int
    """Of all learners, on one GPU, at the worst moment."""
    needs: Mapping[Where, int]
    """By the place of the engine; those that cannot be are absent."""


class RunSizes:
    """A run's settings with the shapes of its models, from which everything is counted.

    Raises:
        UsageError: settings that the run would refuse, or a model whose shape is not here.
    """

    def __init__(self, config: TrainConfig) -> None:
        """Read the shapes; nothing is loaded or asked for."""
        self._asked = config
        alone = in_one_process(config)
        task = make_training_workflow(alone).task.name
        with tempfile.TemporaryDirectory() as folder:
            room = Path(folder)
            words = {word.partition("=")[0]: word.partition("=")[2] for word in alone.models}
            folders = {
                model: model_folder(model, task, room) for model in {alone.model, *words.values()}
            }
            placed = replace(
                alone,
                model=_placed(alone.model, folders),
                models=tuple(f"{name}={_placed(one, folders)}" for name, one in words.items()),
            )
            self.plan: RunPlan = resolve(placed.settled())
            self.config = replace(self.plan.config, model=config.model, models=config.models)
            own = per_policy(config.models, self.plan.names, "models")
            names = {name: own.get(name, config.model) for name in self.plan.names}
            configs = {model: read_config(folders[model]) for model in set(names.values())}
            files = {model: files_bytes(folders[model]) for model in configs}
        self.configs: Mapping[str, Any] = configs
        self._shapes = {m: shape_of(c, config.lora_targets) for m, c in configs.items()}
        self._activations: dict[tuple[str, Training], Activations] = {}
        self.models = names
        self.files = files
        self.gangs = plan_gangs(config, names)
        self.learner_gpus = config.learner_gpus

    def shape(self, policy: str) -> ModelShape:
        """The shape of a policy's model."""
        return self._shapes[self.models[policy]]

    def activations(self, policy: str, training: Training) -> Activations:
        """What a policy's backward pass keeps."""
        key = self.models[policy], training
        if key not in self._activations:
            config = self.config
            lora = LoraSettings(config.lora_rank or USUAL_RANK, config.lora_alpha)
            self._activations[key] = count_activations(
                self.configs[key[0]],
                lora if training == "lora" else None,
                config.weights,
                config.compute,
            )
        return self._activations[key]

    @property
    def trained(self) -> list[str]:
        """The policies that are trained."""
        return [name for name in self.plan.names if name not in self.config.frozen]

    @property
    def training(self) -> Training:
        """What the settings say."""
        return "lora" if self.config.lora_rank else "full"

    @property
    def rank(self) -> int:
        """Of adapters: the settings', or the usual one."""
        return self.config.lora_rank or USUAL_RANK

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
            adapter=shape.adapter(self.rank) if training == "lora" else 0,
            roles=self.roles(policy),
            ranks=ranks,
            shard=shard,
        )

    def learners(self, training: Training, ranks: int, shard: Sharding) -> int:
        """Bytes of all learners on one GPU: adapters of a model share it, one learns at a time."""
        return sum(self._together(training, ranks, shard, self.plan.names))

    def gang(self, gang: GangPlan) -> int:
        """Bytes of the learners of a gang on the GPU of each of its workers."""
        shard = self._asked.shard
        return sum(self._together(self.training, gang.workers, shard, gang.policies))

    def held(self, training: Training, ranks: int, shard: Sharding) -> int:
        """The same while nothing is learnt."""
        return self._together(training, ranks, shard, self.plan.names)[0]

    def _together(
        self, training: Training, ranks: int, shard: Sharding, names: Sequence[str]
    ) -> tuple[int, int]:
        held, most, seen = 0, 0, set[str]()
        for name in names:
            size = 2 if self.config.weights == "bfloat16" else 4
            if name in self.config.frozen:
                if (self.models[name]) not in seen:
                    held += self.shape(name).parameters * size
                    seen.add(self.models[name])
                continue
            one = self.learner(name, training, ranks, shard)
            own = sum(one.held.values())
            most = max(most, one.peak - own)
            if training == "lora" and self.models[name] in seen:
                own -= one.held["weights"]
            seen.add(self.models[name])
            held += own
        return held, most

    def engine_weights(self, training: Training) -> int:
        """Bytes of the weights of all engines: one for each base of adapters, else each policy."""
        bases = [
            self.models[name] if training == "lora" or name in self.config.frozen else name
            for name in self.plan.names
        ]
        first = {base: name for name, base in zip(self.plan.names, bases, strict=True)}
        adapters = 0
        if training == "lora":
            adapters = sum(self.shape(name).adapter(self.rank) for name in self.trained)
        size = BYTES[self.config.engine_dtype]
        return size * (sum(self.shape(name).parameters for name in first.values()) + adapters)

    def least_cache(self, training: Training, block: int = _BLOCK) -> int:
        """Bytes of cache without which the engines do not start: a longest sequence in each.

        In blocks of `block` tokens.
        """
        first: dict[str, str] = {}
        for name in self.plan.names:
            first.setdefault(self.models[name] if training == "lora" else name, name)
        return sum(
            cache_bytes(
                self.configs[self.models[name]], self.config.engine_dtype, self.longest(name), block
            )
            for name in first.values()
        )

    def longest(self, policy: str) -> int:
        """Tokens of the longest sequence that a policy's engine takes."""
        own, asked = self.shape(policy).context, longest_sequence(self.config)
        return min(own, asked) if asked and own else own or asked

    def layouts(self, gpus: int, bytes_each: int) -> list[Layout]:
        """Every layout that `gpus` GPUs of so many bytes allow."""
        found: list[Layout] = []
        kinds: tuple[Training, ...] = ("full", "lora")
        for training in kinds:
            for ranks in (one for one in RANKS if one <= gpus):
                for shard in ("none", "full") if ranks > 1 else ("none",):
                    found.append(self._layout(training, ranks, shard, gpus, bytes_each))
        return found

    def said(self, ranks: int, bytes_each: int) -> str:
        """One line: what the run takes of each GPU as the settings place it."""
        config = self.config
        one = self._layout(self.training, ranks, self._asked.shard, 2 * ranks, bytes_each)
        learner = f"{one.learner / GIB:.1f} GiB of each GPU's {bytes_each / GIB:.1f} for learning"
        place: Where = "transformers"
        if config.engine == "vllm":
            place = config.placement
            if place == "split" and (self._asked.engine_devices or self._asked.backend == "ray"):
                place = "split, own GPUs"
        elif config.engine == "openai":
            return f"memory: about {learner} (`flowzoo plan` says for what)"
        most = one.needs.get(place, one.learner)
        line = f"memory: about {learner}, {most / GIB:.1f} GiB at most with sampling"
        if most > (1 - SPARE) * bytes_each:
            line += ", which may be too much"
        return f"{line} (`flowzoo plan` says for what, and what fits)"

    def _layout(
        self, training: Training, ranks: int, shard: Sharding, gpus: int, bytes_each: int
    ) -> Layout:
        learners = self.learners(training, ranks, shard)
        engine = self.engine_weights(training) + self.least_cache(training)
        asked = int(self.config.engine_memory * GIB)
        if asked:
            engine = max(engine, self.engine_weights(training) + asked)
        else:  # vLLM takes its share whether it is needed or not
            engine = max(engine, int(EngineSettings().gpu_share * bytes_each))
        needs: dict[Where, int] = {}
        if shard == "none":
            needs["transformers"] = max(learners, self._sampling(training))
        if ranks == 1:
            sleeps = self.config.engine_sleep
            held = self.held(training, ranks, shard)
            needs["colocated"] = max(learners, held + engine) if sleeps else learners + engine
        needs["split"] = learners + engine
        if 2 * ranks <= gpus:
            needs["split, own GPUs"] = max(learners, engine)
        return Layout(training, shard, ranks, learners, needs)

    def _sampling(self, training: Training) -> int:
        """Bytes while the learners' own modules sample: a cache for the sequences of a batch."""
        config = self.config
        cache = max(self.shape(one).cache for one in self.plan.names)
        size = BYTES[config.weights if config.weights != "float32" else config.engine_dtype]
        sequences = min(config.max_batch, self.episodes * max(self.agents.values()))
        return self.held(training, 1, "none") + sequences * self.sequence * cache * size

    @property
    def agents(self) -> Mapping[str, int]:
        """How many agents every role has."""
        roles = self.plan.workflow.role_counts()
        return {role: len(agent_names({role: agents})) for role, agents in roles.items()}

    @property
    def sequence(self) -> int:
        """Tokens of the longest reply, and of the longest prompt where the settings bound it."""
        prompts = [one.prompt or 0 for one in self.plan.budgets.roles.values()]
        return self.plan.budgets.reply + max(prompts, default=0)

    @property
    def episodes(self) -> int:
        """Episodes of a step."""
        return self.config.problems * self.plan.samples

    def sync_bytes(self, policy: str) -> dict[Training, int]:
        """Bytes that go to an engine after an update of a policy; a tied head goes twice."""
        shape = self.shape(policy)
        sent = shape.parameters + shape.head * shape.tied
        size = 2 if self.config.weights == "bfloat16" else 4
        if self.config.placement == "split":
            size = BYTES[self.config.engine_dtype]
        return {"full": sent * size, "lora": shape.adapter(self.rank) * 4}


def _placed(model: str, folders: Mapping[str, Path]) -> str:
    return model if model.partition(":")[0] == "pocket" else str(folders[model])
