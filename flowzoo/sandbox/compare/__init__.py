"""Comparison of outputs with expected ones, outside the box."""
