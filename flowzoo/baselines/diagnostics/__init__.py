"""Diagnostics of a run: cliffs, capture, amplification, checking and dead roles, blame."""
