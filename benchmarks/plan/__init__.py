"""Memory and time of a run on GPUs, in advance: `python -m benchmarks.plan`."""
