"""Evaluation on held-out problems: accuracy, majority votes, summaries with intervals.

The entry point is `evaluate`. Training and the command line use it.
"""
