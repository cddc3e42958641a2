"""Voting as verifiers finds it: by the name of a module."""

from flowzoo.adapters.verifiers_env import CallHarness, plugin

VotingTasks, VotingEnv = plugin("voting", problems=6)
__all__ = ["CallHarness", "VotingEnv", "VotingTasks"]
