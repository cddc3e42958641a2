"""`search_team_v0.env(task="search")`: see `flowzoo.envs.workflows.search_team`."""

from flowzoo.envs.api.registry import env_functions
from flowzoo.envs.workflows.search_team import SearchTeam

env, raw_env = env_functions(SearchTeam)
