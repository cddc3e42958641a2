"""Simulated runs of known truth, and tables of how often the diagnostics are wrong on them."""
