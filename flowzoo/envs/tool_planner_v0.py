"""`tool_planner_v0.env(task="plan_path")`: see `flowzoo.envs.workflows.tool_planner`."""

from flowzoo.envs.api.registry import env_functions
from flowzoo.envs.workflows.tool_planner import ToolPlanner

__all__ = ["env", "raw_env"]

env, raw_env = env_functions(ToolPlanner)
