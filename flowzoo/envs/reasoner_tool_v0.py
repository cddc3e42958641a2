"""`reasoner_tool_v0.env(task="math")`: see `flowzoo.envs.workflows.reasoner_tool`."""

from flowzoo.envs.api.registry import env_functions
from flowzoo.envs.workflows.reasoner_tool import ReasonerTool

env, raw_env = env_functions(ReasonerTool)
