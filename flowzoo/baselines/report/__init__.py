"""The report: one page that says how a run, or a matrix of runs, went and which role broke it."""
