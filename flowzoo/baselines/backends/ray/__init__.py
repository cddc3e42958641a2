"""Rollout workers as actors of a Ray cluster; the driver runs the loop and the learners."""
