"""`orch_workers_v0.env(task="math")`: see `flowzoo.envs.orch_workers`."""

from flowzoo.envs.orch_workers import OrchWorkers
from flowzoo.envs.registry import env_functions

__all__ = ["env", "raw_env"]

env, raw_env = env_functions(OrchWorkers)
