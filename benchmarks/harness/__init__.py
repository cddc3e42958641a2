"""Shared parts of the benchmarks: paired timing, load of the machine, memory, files of results."""
