"""Learners, engines and samplers of a run, made from its plan."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flowzoo.agents import PolicyMap, Sampling
from flowzoo.agents.rollout.engine import Resolver, resolve_here
from flowzoo.agents.rollout.episodes import Rollout, Sampler
from flowzoo.agents.rollout.joint import JointRollout
from flowzoo.agents.rollout.settings import JointSettings, TreeSettings
from flowzoo.agents.rollout.tree import TreeRollout
from flowzoo.baselines.backends.backend import LearnerProtocol
from flowzoo.baselines.engines.hf import Engines, LoadedPolicy, PolicyModel
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.schedule import UpdateTurn
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.settings.algorithms import Algorithm
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.layers import PLAIN
from flowzoo.baselines.settings.policies import of_policy
from flowzoo.baselines.training.plan import Replies
from flowzoo.envs import Problem, Workflow
from flowzoo.functions import load_function

ELSEWHERE = "flowzoo.baselines.engines.hf:EnginesElsewhere"


def make_learners(
    trained: Mapping[str, LoadedPolicy], settings: Mapping[str, LearnerConfig]
) -> dict[str, Learner]:
    """Make learners for the policies of `trained` that are not frozen, on their weights."""
    # `settings` has all policies of the run, of which this process may train a few.
    order = list(settings)
    return {
        name: Learner(
            policy.weights, settings[name], turn=UpdateTurn(order.index(name), len(order))
        )
        for name, policy in trained.items()
        if not policy.frozen
    }


def learner_notes(learners: Mapping[str, LearnerProtocol]) -> list[str]:
    """Notes on how the policies are trained, each with the policies that it is about."""
    policies: dict[str, list[str]] = {}
    for name, learner in learners.items():
        for note in learner.notes:
            policies.setdefault(note, []).append(name)
    return [f"{', '.join(names)}: {note}" for note, names in policies.items()]


def open_engines(
    config: TrainConfig,
    trained: Mapping[str, LoadedPolicy],
    learners: Mapping[str, Learner],
    problems: Sequence[Problem],
    replies: Replies,
) -> Engines:
    """Start the engine that the settings name; there is no fallback to another."""
    # Rollout workers open their own.
    opener = ELSEWHERE if config.backend == "ray" else config.engine_traits.training
    make, _ = load_function(f"engine {config.engine}", opener, permitted=True)
    return make(config, trained, *samplings(config, trained, replies), problems, learners)


def open_replica(
    config: TrainConfig, policies: Mapping[str, PolicyModel], problems: Sequence[Problem],
    replies: Replies,
) -> Any:  # fmt: skip
    """Open the engines of a rollout worker; see `flowzoo.baselines.engines.replica`."""
    replicas = config.engine_traits.replicas
    make, _ = load_function(f"engine {config.engine}", replicas, permitted=True)
    return make(config, policies, *samplings(config, policies, replies), problems)


def samplings(
    config: TrainConfig, policies: Iterable[str], replies: Replies
) -> tuple[Mapping[str, Sampling], Mapping[str, Sampling]]:
    """Sampling of training and of evaluations, by policy."""
    training, evaluating = dict[str, Sampling](), dict[str, Sampling]()
    evaluated = {setting: getattr(config, f"eval_{setting}") for setting in PLAIN}
    for name in policies:
        settings = of_policy(config, name)
        plain = {setting: getattr(settings, setting) for setting in PLAIN}
        training[name] = Sampling(**plain, max_tokens=replies.training)
        evaluating[name] = Sampling(**evaluated, max_tokens=replies.evaluations)
    return training, evaluating


def make_sampler(
    config: TrainConfig, algorithm: Algorithm, workflow: Workflow, policy_map: PolicyMap, *,
    seed: int, failures: Path, resolver: Resolver = resolve_here,
) -> Sampler:  # fmt: skip
    """Make the sampler of training episodes."""
    shared: dict[str, Any] = {
        "seed": seed, "deterministic": config.deterministic, "failures": failures,
        "resolver": resolver,
        # An episode with an unknown verdict is not trained on.
        "on_error": "ungraded",
    }  # fmt: skip
    config = algorithm.fill(config)
    assert config.candidates is not None
    if algorithm.sampling == "tree":
        tree = TreeSettings(
            candidates=config.candidates,
            value=config.candidate_value,
            value_rollouts=config.value_rollouts,
            select=config.select,
        )
        return TreeRollout(workflow, policy_map, tree, **shared)
    if algorithm.sampling == "joint":
        joint = JointSettings(config.candidates, joint=config.joint, leaves=config.leaves)
        return JointRollout(workflow, policy_map, joint, **shared)
    return Rollout(workflow, policy_map, **shared)
