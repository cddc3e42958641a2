"""Experiment matrices: many runs as one resumable command, with controls at equal budgets.

`file.load_matrix` reads one, `run.execute` runs it; `bundled` has the matrices of flowzoo.
"""
