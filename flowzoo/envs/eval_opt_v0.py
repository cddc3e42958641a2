"""`eval_opt_v0.env(task="math")`: see `flowzoo.envs.eval_opt`."""

from flowzoo.envs.eval_opt import EvalOpt
from flowzoo.envs.registry import env_functions

__all__ = ["env", "raw_env"]

env, raw_env = env_functions(EvalOpt)
