"""The choices of the learner and its loss by name. Importing this needs no torch, as help must."""

from __future__ import annotations

from typing import Literal

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "token-sum"]
Clipping = Literal["objective", "weight"]
Compute = Literal["float32", "bfloat16"]
Correction = Literal["none", "renormalise"]
KlEstimate = Literal["corrected", "plain"]
Decay = Literal["matrices", "all"]
LayoutChoice = Literal["auto", "packed", "padded"]
LoraTargets = Literal["linear", "all"]
LrSchedule = Literal["constant", "linear", "cosine"]
OldLogp = Literal["sampler", "recomputed"]
OptimizerName = Literal["adamw", "adafactor", "sgd", "muon", "adamw8bit"]
Ratio = Literal["token", "sequence", "none"]
RoleLoss = Literal["pooled", "mean", "sum"]
RowLayout = Literal["packed", "padded"]
ScheduleClock = Literal["iteration", "update"]
Truncated = Literal["train", "mask", "penalise", "shape"]
