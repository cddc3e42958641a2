"""Where a run's work is done: in one process, or in several that do the same steps together.

May use samplers of `flowzoo.agents`, learners and the settings. See docs/scale.md.
"""
