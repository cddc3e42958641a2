"""`single_v0.env(task="math")`: see `flowzoo.envs.workflows.single`."""

from flowzoo.envs.api.registry import env_functions
from flowzoo.envs.workflows.single import Single

env, raw_env = env_functions(Single)
