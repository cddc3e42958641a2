"""Fixtures of the report's tests: run directories with planted courses."""

from tests.baselines.report.conftest import make_run, matrix_runs

__all__ = ["make_run", "matrix_runs"]
