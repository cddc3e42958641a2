"""`code_pair_v0.env(task="code")`, `.parallel_env(...)`: see `flowzoo.envs.workflows.code_pair`."""

from flowzoo.envs.api.parallel import parallel_function
from flowzoo.envs.api.registry import env_functions
from flowzoo.envs.workflows.code_pair import CodePair

env, raw_env = env_functions(CodePair)
parallel_env = parallel_function(CodePair)
