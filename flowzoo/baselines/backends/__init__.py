"""Backends: the work of a run in one process, or in several that take the same steps.

May use samplers of `flowzoo.agents`, learners and the settings. See docs/scale.md.
"""
