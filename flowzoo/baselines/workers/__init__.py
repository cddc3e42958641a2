"""Rollouts, learning and grading in worker processes of a run, built from its settings."""
