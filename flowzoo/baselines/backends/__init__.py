"""Backends: the work of a run in one process, or in several that take the same steps."""
