"""The fixture of the report's tests: run directories with planted courses."""

from tests.baselines.report.conftest import make_run

__all__ = ["make_run"]
