"""Tables of what is refused and what is said about it, in `refused.toml` beside the tests."""

from typing import Any

from tests.tables import read_tables


def refused(test: str, table: str, *, tuples: bool = True) -> list[tuple[Any, str]]:
    """Rows of a table beside the file `test`.

    Args:
        test: path of a test file.
        table: name of the table.
        tuples: turn lists of settings into tuples, which is what settings hold.
    """
    rows = read_tables(test, "refused")[table]
    return [(settings_of(case) if tuples else case, message) for case, message in rows]


def settings_of(case: Any) -> Any:
    """The case with tuples for lists; a case that is no table of settings stays."""
    if not isinstance(case, dict):
        return case
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in case.items()
    }
