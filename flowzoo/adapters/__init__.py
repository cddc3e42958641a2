"""Our workflows in the trainers and evaluators of others; docs/libraries.md says what runs.

Each file is for one library, which is imported when something of it is needed. None of them plays
or pays by itself: episodes are those of `flowzoo.agents.rollout`, rewards and advantages the same.
"""
