"""`coder_tester_v0.env(task="code")`: see `flowzoo.envs.workflows.coder_tester`."""

from flowzoo.envs.api.registry import env_functions
from flowzoo.envs.workflows.coder_tester import CoderTester

env, raw_env = env_functions(CoderTester)
