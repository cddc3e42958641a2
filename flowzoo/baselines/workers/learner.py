"""Learning in another process of a run: its learners, built from settings."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from flowzoo.agents.hf.process import prepare_process
from flowzoo.agents.identity import ModelIdentity
from flowzoo.baselines.engines.hf import load_policies, policy_models
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.factories import make_learners
from flowzoo.baselines.training.plan import resolve
from flowzoo.waits import LIMITS


def open_learners(
    config: TrainConfig, began: Mapping[str, ModelIdentity], policies: Sequence[str]
) -> dict[str, Learner]:
    """Learners of a group's `policies` at the start of a run with these settings, by policy.

    `began` has the models of the driver, which must be the same here.
    """
    # `device` is the driver's, which does not learn.
    config = replace(config, device="cuda" if config.learner_gpus else "cpu")
    prepare_process(config.threads or int(os.environ.get("OMP_NUM_THREADS", "1")))
    LIMITS.put(config.wait_limit, config.function_limit)
    # From plain values, so that every rank of a learner group builds the same learners.
    plan = resolve(config)
    models = policy_models(config, plan.models, plan.workflow.task.name, began)
    loaded = load_policies(config, models, policies)
    return make_learners(loaded, plan.learners)
