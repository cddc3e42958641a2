"""Type aliases and type variables that several rooms use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

T = TypeVar("T")
Floats: TypeAlias = "npt.NDArray[np.float64]"
MetricRow: TypeAlias = dict[str, Any]
"""Metrics of a step by name: numbers, texts, and lists with a number for each problem."""
StateDict: TypeAlias = dict[str, Any]
"""State of an object by attribute, as pickle and torch keep it."""
AgentInfo: TypeAlias = dict[str, Any]
"""Facts beside an observation: `info` of PettingZoo and Gymnasium."""
ResetOptions: TypeAlias = dict[str, Any]
"""`options` of `reset` of PettingZoo and Gymnasium."""
ParamGroup: TypeAlias = dict[str, Any]
"""Parameters, and the options of a torch optimizer that they share."""
DataRecord: TypeAlias = dict[str, Any]
"""A row of a file of data as it was read, whose columns are its author's."""
