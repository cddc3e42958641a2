"""`eval_opt_v0.env(task="math")`: see `flowzoo.envs.workflows.eval_opt`."""

from flowzoo.envs.api.registry import env_functions
from flowzoo.envs.workflows.eval_opt import EvalOpt

env, raw_env = env_functions(EvalOpt)
