"""Rollout workers as actors of a Ray cluster; the driver runs the loop and the learners.

Nothing here is imported unless the settings name this backend. See docs/scale.md.
"""
