"""Functions of the user in a run, by name: `module:function`, or `path/to/file.py:function`.

Arguments and permitted changes are in docs/hooks.md and in the classes below.
"""

from __future__ import annotations

import json
import logging
import math
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from flowzoo.aliases import Floats
from flowzoo.envs import Call, Rubric
from flowzoo.envs.workflow import FinishedEpisode
from flowzoo.errors import UsageError
from flowzoo.functions import FunctionSetting, call_noted
from flowzoo.permission import PERMISSION
from flowzoo.provenance import redact
from flowzoo.waits import function_call

if TYPE_CHECKING:
    from torch import Tensor

    from flowzoo.baselines.settings.config import TrainConfig

ALERT_S = 30.0
"""Seconds that the command of `alert` may take; it is ended then."""
RUBRIC = "judge:"
"""Start of the name of a reward that is a rubric's file."""

logger = logging.getLogger("flowzoo")


class Hook(FunctionSetting):
    """A function of a run; its setting is as on the command line."""

    def call(self, *given: object, of: str = "") -> Any:
        """Call the function; errors get a note with its name and `of`, its subject."""
        name = f"{self.setting} {self.name}{of}"
        with function_call(name):
            return call_noted(self.function, name, *given)

    def wrong(self, expected: str, got: object, of: str = "") -> UsageError:
        """The error for a result that cannot be used; `of`: as of `call`."""
        return UsageError(f"{self.setting} {self.name}{of} must return {expected}, got {got}.")


class AdvantageFunction(Hook):
    """Computes the final advantages.

    Its arguments are the rows of an iteration (a list of `Call`, candidates of tree sampling
    included), the algorithm's advantages (a float64 copy that it may change and return) and the
    score of every episode by id. The rule for truncated replies is applied afterwards, and
    `--refill` uses the result. Group metrics describe the algorithm's advantages.
    """

    def __call__(
        self, calls: Sequence[Call], advantages: Floats, returns: Mapping[str, float]
    ) -> Floats:
        """Return one advantage a row, (rows,).

        Raises:
            UsageError: not one finite number a row.
        """
        # A copy of the rows and a view of the returns: a function changes nothing else.
        result = self.call(list(calls), advantages, MappingProxyType(dict(returns)))
        expected = f"{len(calls)} finite numbers, one a row"
        try:
            values = np.asarray(result)
            if values.dtype.kind not in "fiu":  # strings and booleans would become numbers
                raise TypeError(values.dtype)
        except (TypeError, ValueError, RuntimeError):  # the last: a tensor with a gradient
            raise self.wrong(expected, f"{type(result).__name__} {result!r:.60}") from None
        values = values.astype(np.float64)
        if values.shape != (len(calls),):
            raise self.wrong(expected, f"an array of shape {values.shape}")
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            raise self.wrong(expected, f"{values[bad[0]]} for row {bad[0]}")
        return values


class LossFunction(Hook):
    """Replaces the clipped objective.

    Its arguments are log-probs under the present weights and under the weights that the ratio is
    taken to, (rows, tokens), advantages (rows,) and the mask of sampled tokens; it returns the loss
    of every token. Only the first has a gradient; off the mask values are 0 and ignored. The
    learner applies weights of rows, the KL term, the entropy bonus and the aggregation as usual.
    """

    def __call__(
        self, logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor
    ) -> Tensor:
        """Return the loss of every token, shaped like `logps`.

        Raises:
            UsageError: no tensor of that shape, or one without a gradient.
            NonFiniteError: NaN or infinite; it has the rows.
        """
        import torch  # late: settings need no torch

        from flowzoo.baselines.learner.loss import NonFiniteError

        losses = self.call(logps, old_logps, advantages, mask)
        expected = f"a tensor of shape {tuple(logps.shape)}"
        if not isinstance(losses, torch.Tensor):
            raise self.wrong(expected, f"{type(losses).__name__} {losses!r:.60}")
        if losses.shape != logps.shape:
            raise self.wrong(expected, f"a tensor of shape {tuple(losses.shape)}")
        if logps.requires_grad and not losses.requires_grad:
            raise self.wrong(f"{expected} made of `logps`", "one without a gradient")
        bad = (~torch.isfinite(losses) & mask.bool()).nonzero()
        if len(bad):
            row, token = bad[0].tolist()
            got = f"{losses[row, token].item()} for row {row}, token {token}"
            error = self.wrong("finite losses", got)
            raise NonFiniteError(str(error), bad[:, 0].unique().tolist())
        return losses


class RewardFunction(Hook):
    """Scores a finished training episode in place of its task's grader.

    It gets a `FinishedEpisode` and returns the episode's score, from which the workflow's credit
    rule pays the calls. Evaluations keep the task's score, so that a reward is not measured by
    itself. A rubric's file, `judge:FILE.toml`, is such a function too.
    """

    def __init__(self, setting: str, name: str) -> None:
        if not name.startswith(RUBRIC):
            super().__init__(setting, name)
            return
        rubric = Rubric(name.removeprefix(RUBRIC))
        self.setting, self.name, self.digest = setting, name, rubric.digest
        self.function: Callable[..., Any] = rubric

    @property
    def judged(self) -> Sequence[Any]:
        """Criteria that a judge decides; none of a function."""
        return getattr(self.function, "judged", ())

    def __call__(self, episode: FinishedEpisode) -> float:
        """Return the score.

        Raises:
            UsageError: no finite number.
        """
        of = f" of problem {episode.problem.id}"
        score = self.call(episode, of=of)
        if isinstance(score, bool) or not isinstance(score, (int, float, np.floating, np.integer)):
            raise self.wrong("a number", f"{type(score).__name__} {score!r:.60}", of)
        if not math.isfinite(score):
            raise self.wrong("a finite number", score, of)
        return float(score)


class StepControl:
    """A step, as a callback sees and may change it.

    Read: `step`, `metrics` (the row of metrics.jsonl so far), `history` (the rows before it),
    `config`. Change: `log`, `scale_lr`, `stop`. Nothing else can be changed, so that a run can be
    repeated from its settings, its functions and its checkpoint, which stores the changes.
    """

    def __init__(
        self,
        step: int,
        metrics: Mapping[str, object],
        history: Sequence[Mapping[str, object]],
        config: TrainConfig,
        scales: Mapping[str, float],
    ) -> None:
        self.step, self.config = step, config
        self.metrics = MappingProxyType(dict(metrics))
        self.history = tuple(MappingProxyType(dict(row)) for row in history)
        self.scales = dict(scales)
        """Factor on the scheduled learning rate by policy, from the next step on."""
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
        self.stopped = redact(str(reason)) or "a callback"


class Callback(Hook):
    """Runs after every step, the evaluation before the first one included."""

    def __call__(self, step: StepControl) -> None:
        """Run the callback.

        Raises:
            UsageError: it returned a value, which would be ignored.
        """
        of = f" at step {step.step}"
        result = self.call(step, of=of)
        if result is not None:
            nothing = "nothing (it changes the step that it is given)"
            raise self.wrong(nothing, repr(result)[:60], of)


def alert_words(command: str) -> list[str]:
    """Split a command into words, which no shell reads.

    Raises:
        UsageError: it has an open quotation, or no word.
    """
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--alert {command!r} is no command ({error}): close its quotes") from None
    if not arguments:
        raise UsageError('--alert must name a command, e.g. "python notify.py", got spaces alone')
    return arguments


def check_alert(command: str) -> None:
    """Check that a command of settings may be run, and that it has words."""
    if command:
        PERMISSION.check(command)
        alert_words(command)


def send_alert(command: str, event: Mapping[str, object]) -> None:
    """Run a command with an event as JSON on its standard input; failures are logged."""
    try:
        done = subprocess.run(
            alert_words(command), input=json.dumps(event), text=True, timeout=ALERT_S, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("the command of --alert failed: %s", error)
        return
    if done.returncode:
        message = " ".join(done.stderr.split())[-200:]
        logger.warning("the command of --alert ended with status %d: %s", done.returncode, message)


def check_hooks(config: TrainConfig) -> None:
    """Check that the functions of settings may be loaded; none is, nor is a rubric read."""
    for name in (config.advantage_function, config.loss, config.reward, *config.callback):
        if name and not name.startswith(RUBRIC):
            PERMISSION.check(name)
    check_alert(config.alert)
