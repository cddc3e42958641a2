"""`writing_pair_v0.env(task="writing")`, `.parallel_env(...)`: see `workflows.writing_pair`."""

from flowzoo.envs.api.parallel import parallel_function
from flowzoo.envs.api.registry import env_functions
from flowzoo.envs.workflows.writing_pair import WritingPair

env, raw_env = env_functions(WritingPair)
parallel_env = parallel_function(WritingPair)
