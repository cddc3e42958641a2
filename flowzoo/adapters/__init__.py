"""Workflows in other trainers and evaluators; docs/libraries.md lists what runs.

Each file is for one library. Episodes come from `flowzoo.agents.rollout`, with the rewards and
advantages of `flowzoo train`.
"""
