"""How much memory and time a run will take, from its settings and the shapes of its models.

No weights are loaded and no GPU is asked. May use the plan of a run, the learner and the engines'
settings.
"""
