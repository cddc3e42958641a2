"""Type aliases and type variables that several rooms use."""

from __future__ import annotations

from typing import Annotated, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")
Floats = npt.NDArray[np.float64]
ByPolicy = Annotated[T, "by policy"]
"""A setting of a run that takes a value for all policies, or words: POLICY=VALUE for individual
policies, and at most one VALUE for the others (`flowzoo.baselines.settings.by_policy`)."""
