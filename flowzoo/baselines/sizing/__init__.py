"""Memory of a run in advance, from its settings and the shapes of its models.

No weights are loaded, and no GPU is asked. `benchmarks/plan` prints tables and hours.
"""
