"""`voting_v0.env(task="math")`: see `flowzoo.envs.voting`."""

from flowzoo.envs.registry import env_functions
from flowzoo.envs.voting import Voting

__all__ = ["env", "raw_env"]

env, raw_env = env_functions(Voting)
