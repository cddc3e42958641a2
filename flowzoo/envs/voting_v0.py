"""`voting_v0.env(task="math")`: see `flowzoo.envs.workflows.voting`."""

from flowzoo.envs.api.registry import env_functions
from flowzoo.envs.workflows.voting import Voting

env, raw_env = env_functions(Voting)
