"""Memory of a run, in advance: `python -m benchmarks.plan`."""
