"""The engines around a run: what samples, what judges, and how new weights get there.

May use policies of `flowzoo.agents`, the learner's weights and the settings.
"""
