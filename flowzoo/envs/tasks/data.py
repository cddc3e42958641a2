"""Base of the tasks whose problems are the rows of a file, or are generated where none is named."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, Protocol, TypeVar

from flowzoo.envs.tasks.rows import DataSource, HasText
from flowzoo.envs.tasks.task import Problem, Task, check_split
from flowzoo.errors import UsageError


class NumberedRow(HasText, Protocol):
    """A row that knows where it stands."""

    @property
    def line(self) -> int:
        """The row's line in the file, from 1."""
        ...


N = TypeVar("N", bound=NumberedRow)


class DataTask(Task, Generic[N]):
    """A task on a file, as path and content digest, or on a generator."""

    # Fields of the tasks, whose dataclasses are frozen.
    @property
    @abstractmethod
    def data(self) -> str | None:
        """Path of the file, or id of a data set; None: the problems are generated."""

    @property
    @abstractmethod
    def seed(self) -> int:
        """Seed of the generator. Files: only part of the problems' ids."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """Digest that the content of `data` must have."""

    @abstractmethod
    def _source(self) -> DataSource[N]:
        """The rows of `data`."""

    @abstractmethod
    def _of_row(self, row: N, index: int, split: str, where: dict[str, Any]) -> Problem:
        """The problem of a row; `where` (name of the source, line) is part of its `meta`."""

    @abstractmethod
    def _generated(self, index: int, split: str) -> Problem:
        """Generated problem `index` of `split`: a function of its key alone.

        Drawn until the text belongs to `split` by its hash.
        """

    def size(self, split: str) -> int | None:
        """Number of rows of the file in `split`; None for generated problems."""
        check_split(split)
        return None if self.data is None else len(self._source().splits[split])

    def problem(self, index: int, split: str = "train") -> Problem:
        """Problem `index` of `split`; for a file, the row at that position of the split."""
        size = self.check_index(index, split)
        if size is None:
            return self._generated(index, split)
        source = self._source()
        row = source.splits[split][index]
        return self._of_row(row, index, split, {"source": source.name, "row": row.line})


def check_either(task: Any, *generated: str) -> None:
    """Raise `UsageError` unless options of a file, or those named of the generator, stand alone."""
    if task.data is None:
        if task.layout != "auto" or task.columns or task.digest:
            raise UsageError("layout, columns and digest describe a file: give data as well.")
        return
    for option in generated:
        if getattr(task, option) is not None:
            raise UsageError(
                f"{option}={getattr(task, option)!r} chooses generated problems and "
                f"data={task.data!r} a file: give one of the two."
            )
