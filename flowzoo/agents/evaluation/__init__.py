"""Evaluation on held-out problems: accuracy, majority votes, summaries with intervals."""
