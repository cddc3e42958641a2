"""`single_v0.env(task="math")`: see `flowzoo.envs.single`."""

from flowzoo.envs.registry import env_functions
from flowzoo.envs.single import Single

__all__ = ["env", "raw_env"]

env, raw_env = env_functions(Single)
