"""Training and diagnostics: advantages, learners, trainers, run directories, matrices, reports."""
