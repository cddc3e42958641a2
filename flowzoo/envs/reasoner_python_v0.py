"""`reasoner_python_v0.env(task="math")`: see `flowzoo.envs.workflows.reasoner_python`."""

from flowzoo.envs.api.registry import env_functions
from flowzoo.envs.workflows.reasoner_python import ReasonerPython

env, raw_env = env_functions(ReasonerPython)
