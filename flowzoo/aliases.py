"""Type aliases and type variables that several rooms use."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

T = TypeVar("T")
Floats: TypeAlias = "npt.NDArray[np.float64]"
