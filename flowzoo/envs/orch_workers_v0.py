"""`orch_workers_v0.env(task="math")`: see `flowzoo.envs.workflows.orch_workers`."""

from flowzoo.envs.api.registry import env_functions
from flowzoo.envs.workflows.orch_workers import OrchWorkers

env, raw_env = env_functions(OrchWorkers)
