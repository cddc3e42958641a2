"""Functions of the user's own in a run, by name: `module:function`, or `path/to/file.py:function`.

    --advantage-function f     f(calls, advantages, returns) -> one number a row
    --loss f                   f(logps, old_logps, advantages, mask) -> Tensor like `logps`
    --reward f                 f(episode) -> score of a finished training episode
    --callback f               f(step: StepControl) after every step

What each gets and may change is written in docs/hooks.md and beside the classes below. A function
is ordinary code of the user's machine: it runs with the rights of the run and is trusted as the
run's own settings are. Its file's digest is kept in `run.json`, so that a run does not go on with
a function that has changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from flowzoo.envs import Call
from flowzoo.envs.workflow import FinishedEpisode
from flowzoo.errors import UsageError
from flowzoo.functions import call_noted, load_function

if TYPE_CHECKING:
    from torch import Tensor

Floats = npt.NDArray[np.float64]
T = TypeVar("T", bound="Hook")


@dataclass(frozen=True, slots=True)
class Hook:
    """A function that a setting names."""

    option: str
    """The setting, as on the command line."""
    name: str
    """What it was given: `module:function` or `file.py:function`."""
    function: Callable[..., Any]
    digest: str
    """SHA-256 of the file that the function is written in."""

    def call(self, *given: Any) -> Any:
        """What the function returns; what it raises says whose function it was."""
        return call_noted(self.function, f"--{self.option} {self.name}", *given)

    def wrong(self, wanted: str, came: Any) -> UsageError:
        """The error for a result that cannot be used."""
        return UsageError(f"--{self.option} {self.name} must return {wanted}, got {came}.")


class AdvantageFunction(Hook):
    """Has the last word on advantages.

    It gets the rows of an iteration (a list of `Call`, candidates of tree sampling included), what
    the algorithm found for them (a float64 array of its own to change and return, if it likes) and
    the score of every episode by its id. The rule for truncated replies comes after it, and
    `--refill` looks at what it returns. Group metrics stay those of the algorithm.
    """

    def __call__(
        self, calls: Sequence[Call], advantages: Floats, returns: Mapping[str, float]
    ) -> Floats:
        """One advantage a row, (rows,).

        Raises:
            UsageError: not one finite number a row.
        """
        came = self.call(list(calls), advantages, MappingProxyType(dict(returns)))
        wanted = f"{len(calls)} finite numbers, one a row"
        try:
            found = np.asarray(came)
            if found.dtype.kind not in "fiu":  # texts and truths would become numbers
                raise TypeError(found.dtype)
        except (TypeError, ValueError, RuntimeError):  # the last: a tensor with a gradient
            raise self.wrong(wanted, f"{type(came).__name__} {came!r:.60}") from None
        found = found.astype(np.float64)
        if found.shape != (len(calls),):
            raise self.wrong(wanted, f"an array of shape {found.shape}")
        bad = np.flatnonzero(~np.isfinite(found))
        if bad.size:
            raise self.wrong(wanted, f"{found[bad[0]]} for row {bad[0]}")
        return found


class LossFunction(Hook):
    """Stands in place of the clipped objective.

    It gets log-probs under the weights of now and under those that the ratio is taken to, (rows,
    tokens), advantages (rows,) and the mask of sampled tokens, and returns the loss of every token.
    The first alone has a gradient; off the mask everything is 0 and nothing is looked at. Weights
    of rows, the KL term, the entropy bonus and the aggregation are the learner's as ever.
    """

    def __call__(
        self, logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor
    ) -> Tensor:
        """The loss of every token, shaped like `logps`.

        Raises:
            UsageError: no tensor of that shape, or one without a gradient.
        """
        import torch  # loaded by whoever has tensors

        found = self.call(logps, old_logps, advantages, mask)
        wanted = f"a tensor of shape {tuple(logps.shape)}"
        if not isinstance(found, torch.Tensor):
            raise self.wrong(wanted, f"{type(found).__name__} {found!r:.60}")
        if found.shape != logps.shape:
            raise self.wrong(wanted, f"a tensor of shape {tuple(found.shape)}")
        if logps.requires_grad and not found.requires_grad:
            raise self.wrong(f"{wanted} made of `logps`", "one without a gradient")
        return found


class RewardFunction(Hook):
    """Says what a finished training episode is worth, in place of its task's grader.

    It gets a `FinishedEpisode`; what it returns is the episode's score, from which the workflow's
    credit rule pays the calls. Evaluations keep the task's own score, so that what a reward brings
    is measured by something else than itself.
    """

    def __call__(self, episode: FinishedEpisode) -> float:
        """The score.

        Raises:
            UsageError: no finite number.
        """
        found = self.call(episode)
        if isinstance(found, bool) or not isinstance(found, (int, float, np.floating, np.integer)):
            raise self.wrong("a number", f"{type(found).__name__} {found!r:.60}")
        if not math.isfinite(found):
            raise self.wrong("a finite number", found)
        return float(found)


class StepControl:
    """What a callback sees of a step, and all that it may change.

    Read: `step`, `metrics` (the row of metrics.jsonl so far), `history` (the rows before it),
    `config`. Change: `log`, `scale_lr`, `stop`; everything else is left alone, so that a run can be
    repeated from its settings, its functions and its checkpoint, which keeps what was changed.
    """

    def __init__(
        self,
        step: int,
        metrics: Mapping[str, Any],
        history: Sequence[Mapping[str, Any]],
        config: Any,
        scales: Mapping[str, float],
    ) -> None:
        """Look at a step; `scales` are the policies with the factors on their learning rates."""
        self.step, self.config = step, config
        self.metrics = MappingProxyType(dict(metrics))
        self.history = tuple(MappingProxyType(dict(row)) for row in history)
        self.scales = dict(scales)
        """Policy -> factor on its scheduled learning rate, from the next step on."""
        self.logged: dict[str, float] = {}
        self.stopped = ""

    def log(self, name: str, value: float) -> None:
        """Add a number to the step's row, as `callback/NAME`.

        Raises:
            UsageError: not a finite number.
        """
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UsageError(f"a callback's metric {name!r} must be a number, got {value!r}.")
        if not math.isfinite(value):
            raise UsageError(f"a callback's metric {name!r} must be finite, got {value}.")
        self.logged[f"callback/{name}"] = float(value)

    def scale_lr(self, factor: float, policy: str | None = None) -> None:
        """Multiply the scheduled learning rate by `factor` from the next step on, until changed.

        Raises:
            UsageError: a factor below 0, or no such trained policy.
        """
        if not 0 <= factor < math.inf:
            raise UsageError(f"`factor` of scale_lr must be at least 0, got {factor}.")
        if policy is not None and policy not in self.scales:
            raise UsageError(
                f"scale_lr: no trained policy {policy!r}; there are {', '.join(self.scales)}."
            )
        for name in self.scales if policy is None else (policy,):
            self.scales[name] = float(factor)

    def stop(self, reason: str) -> None:
        """End the run after this step; `reason` is written into summary.json."""
        self.stopped = str(reason) or "a callback"


class Callback(Hook):
    """Is called after every step, the evaluation before the first one included."""

    def __call__(self, step: StepControl) -> None:
        """Look at a step.

        Raises:
            UsageError: it returned something, which nothing would look at.
        """
        found = self.call(step)
        if found is not None:
            raise self.wrong("nothing (it changes the step that it is given)", repr(found)[:60])


def load_hook(kind: type[T], option: str, name: str) -> T:
    """The function that `name` says, `module:function` or `path/to/file.py:function`.

    Raises:
        UsageError: another form, no such module, file or function, or one that raises when it is
            imported.
    """
    named = load_function(f"--{option}", name)
    return kind(option, name, named.function, named.digest())
