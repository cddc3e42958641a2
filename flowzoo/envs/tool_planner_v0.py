"""`tool_planner_v0.env(task="plan_path")`: see `flowzoo.envs.workflows.tool_planner`."""

from flowzoo.envs.api.registry import env_functions
from flowzoo.envs.workflows.tool_planner import ToolPlanner

env, raw_env = env_functions(ToolPlanner)
