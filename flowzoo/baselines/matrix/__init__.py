"""Experiment matrices: many runs as one resumable command, with controls at equal budgets."""
