"""Verdicts of flowzoo's graders next to published ones: `python -m benchmarks.grading.NAME`."""
