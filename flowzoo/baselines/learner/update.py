"""The learner of one policy: rows and advantages in, one or more optimizer steps out."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from flowzoo.agents.hf.kept_linears import KeptLinears
from flowzoo.aliases import StateDict, T
from flowzoo.baselines.learner.batch import (
    SampledTokens,
    TrainingRow,
    cut_microbatches,
    make_rows,
    role_microbatches,
    split,
    weigh_roles,
)
from flowzoo.baselines.learner.config import LearnerConfig, RowLayout
from flowzoo.baselines.learner.forward import OldLogps
from flowzoo.baselines.learner.gradient import LossGradient, StepContext
from flowzoo.baselines.learner.gradient_stats import Coherence
from flowzoo.baselines.learner.hidden_states import fitting_layout, prepare
from flowzoo.baselines.learner.learner_group import LearnerGroup
from flowzoo.baselines.learner.loss import LossNormalizer
from flowzoo.baselines.learner.metrics import OptimizerStep, TokenSums, row_counts, step_metrics
from flowzoo.baselines.learner.optimizers import make_optimizer
from flowzoo.baselines.learner.schedule import ALONE, UpdateTurn, lr_in
from flowzoo.baselines.learner.update_effect import UpdateEffect, sample
from flowzoo.baselines.learner.weights import Weights, whole_tensor
from flowzoo.envs.records import Call
from flowzoo.errors import UsageError

# torch reads it at the first matrix product on a GPU.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@contextmanager
def fixed_order() -> Iterator[None]:
    """Inside, torch adds up in a fixed order; `UsageError` for an operation without one."""
    memory: Any = torch.utils.deterministic
    before, filled = torch.get_deterministic_debug_mode(), memory.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("error")
    memory.fill_uninitialized_memory = False
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        raise UsageError(
            "this model's updates cannot have the same bits twice on this GPU "
            f"({str(error).splitlines()[0][:300]}): turn `deterministic` off."
        ) from error
    finally:
        torch.set_deterministic_debug_mode(before)
        memory.fill_uninitialized_memory = filled


class Learner:
    """Trains one causal language model in place: all its weights, or an adapter on it."""

    # Rows are in canonical order, and a loss is normalized by the counts of its optimizer step:
    # neither the order of arrival nor the size of microbatches changes the result (up to rounding).

    def __init__(
        self,
        model: PreTrainedModel | Weights,
        config: LearnerConfig,
        reference: PreTrainedModel | None = None,
        turn: UpdateTurn = ALONE,
    ) -> None:
        self.weights = Weights(model) if isinstance(model, PreTrainedModel) else model
        self.model = self.weights.model
        if any(hasattr(parameter, "full_tensor") for parameter in self.model.parameters()):
            raise UsageError(
                "the model is spread over ranks already, and a learner tries it before: make every "
                "learner on a model, then `join` the learner group with each"
            )
        self.layout: RowLayout
        self.layout, self.notes = fitting_layout(self.model, config.layout)
        self.notes += self.weights.notes
        prepare(
            self.model,
            self.layout,
            gradient_checkpointing=config.gradient_checkpointing,
            compile=config.compile,
        )
        self.gradient = LossGradient(self.weights, config, self.layout, reference)
        self._turn = turn
        self.iteration = 0
        """Number of `update` calls so far."""
        self.steps = 0
        """Number of optimizer steps so far: the version of the weights."""
        self.lr_scale = 1.0
        """Factor on the scheduled learning rate."""
        self.parameters = self.weights.parameters()
        self.optimizer = make_optimizer(self.weights, config)
        self.learner_group = LearnerGroup()
        """The ranks that train this policy together."""
        self._coherence = None
        if config.coherence:
            window, form = config.coherence_window, config.coherence_form
            self._coherence = Coherence(config.coherence, window, form)

    @property
    def config(self) -> LearnerConfig:
        """The choices."""
        return self.gradient.config

    def join(self, learner_group: LearnerGroup) -> None:
        """Share the work with the ranks of `learner_group`; before any update."""
        # Every learner on the model must exist by now: a sharded model can no longer be tried.
        self.learner_group = learner_group
        learner_group.shard(self.model)
        self.gradient.join(learner_group, self.weights)
        self.parameters = self.weights.parameters()
        self.optimizer = make_optimizer(self.weights, self.config)
        if self._coherence is not None:
            self._coherence.learner_group = learner_group

    def update(self, calls: Sequence[Call], advantages: Sequence[float]) -> dict[str, float]:
        """Train on `calls` with one advantage each; the metrics of docs/metrics.md.

        Raises:
            UsageError: a row cannot be trained on, or the lengths differ.
            NonFiniteError: a loss, gradient or input is not finite; the step changed nothing.
        """
        rows = make_rows(calls, advantages, self.config)
        lr = lr_in(self.iteration, self._turn, self.config) * self.lr_scale
        self.iteration += 1
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        parts = split(rows, self.config)
        with self._active():
            before = self.gradient.look_ahead(parts[1:])
            effect = self._effect(rows, parts)
            steps = [self._step(part, before, effect) for part in parts]
            moved = {} if effect is None else effect.metrics(self.model)
        done = [step for step in steps if step is not None]
        self.steps += len(done)
        metrics = row_counts(rows) | {
            "learn/lr": lr,
            "learn/steps": float(len(done)),
            "learn/skipped": float(len(parts) - len(done)),
        }
        return metrics | step_metrics(done, self.config) | moved if done else metrics

    def apply(self, work: Callable[..., T], *given: Any) -> T:
        """Call `work`: the learner is in this process."""
        return work(self, *given)

    def gradients(
        self, groups: Iterable[Sequence[TrainingRow]], totals: LossNormalizer
    ) -> Iterator[list[Tensor]]:
        """The gradient of the loss of each group of rows, as one tensor a parameter."""
        # Normalized by `totals`, gradients of groups add up to that of all. Of a sharded model this
        # rank's part comes.
        for rows in groups:
            with self.gradient.nothing_left(), self._active():
                batches = role_microbatches(rows, self.config, self.layout).values()
                context = StepContext(totals, {})
                self.gradient.add([part for parts in batches for part in parts], context)
                gradients = [
                    torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters
                ]
            yield self.learner_group.local(gradients)

    @torch.no_grad()
    def gaps(self, rows: Sequence[SampledTokens]) -> Tensor:
        """|learner - sampler| of the log-probs of this rank's output tokens: (tokens,)."""
        gaps: list[Tensor] = []
        config = self.config
        parts = cut_microbatches(
            rows, self.layout, config.microbatch_tokens, config.microbatch_rows
        )
        with self._active():
            for number in range(self.learner_group.num_forward_passes(len(parts))):
                part = parts[min(number, len(parts) - 1)]
                batch = self.gradient.forward.batch([rows[i] for i in part], [0.0] * len(part))
                logps = self.gradient.forward(self.model, batch).logps
                if number < len(parts):
                    gaps.append((logps - batch.behavior_logps).abs()[batch.mask].cpu())
        return torch.cat(gaps)

    def plain_logps(self, rows: Sequence[SampledTokens]) -> list[list[float]]:
        """Log-probs of the output tokens of `rows` by the model itself: temperature 1, no cut."""
        with self._active():
            return [
                row_logps.tolist()
                for row_logps in self.gradient.forward.plain_logps(self.model, rows)
            ]

    def state_dict(self) -> StateDict:
        """Optimizer state, counts and running means (the weights are saved on their own)."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "iteration": self.iteration,
            "steps": self.steps,
            "lr_scale": self.lr_scale,
            "coherence": None if self._coherence is None else self._coherence.state_dict(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over what `state_dict` returned."""
        if (state["coherence"] is None) != (self._coherence is None):
            raise UsageError("the coherence regularizer was on in the one and off in the other.")
        self.optimizer.load_state_dict(state["optimizer"])
        self.iteration, self.steps = state["iteration"], state["steps"]
        self.lr_scale = state["lr_scale"]
        if self._coherence is not None:
            self._coherence.load_state_dict(state["coherence"], self.parameters)

    @contextmanager
    def _active(self) -> Iterator[None]:
        # The model computes with the policy's weights. Autocast would round them in every pass, so
        # rounded copies replace them, which are renewed here and after every optimizer step.
        layers = self._rounded_layers
        if layers:
            layers.refresh()
        ordered = self.config.fixed_order and self.model.device.type != "cpu"
        with (
            self.weights.active(),
            layers.active() if layers else nullcontext(),
            fixed_order() if ordered else nullcontext(),
        ):
            yield

    @cached_property
    def _rounded_layers(self) -> KeptLinears | None:
        # Asked for after `join`: sharded weights have no copies.
        sharded = any(hasattr(weight, "full_tensor") for weight in self.model.parameters())
        if self.gradient.forward.casts_weights and not sharded:
            return KeptLinears(self.model, "bfloat16")
        return None

    def _effect(
        self, rows: Sequence[TrainingRow], parts: Sequence[Sequence[TrainingRow]]
    ) -> UpdateEffect | None:
        if not self.config.update_effect:
            return None
        first = next((part for part in parts if any(row.trained for row in part)), None)
        if first is None:
            return None
        passes = 1 if self.gradient.forward.is_exact else 2
        chosen = sample(rows, self.iteration, self.config.microbatch_tokens, passes)
        # Of several ranks each computes some rows, and this one needs all.
        pending = {row.index for row in first if row.computed and self.learner_group.alone}
        return UpdateEffect(self.gradient.forward, self.model, chosen, self.iteration, pending)

    def _step(
        self,
        rows: Sequence[TrainingRow],
        before: Mapping[int, OldLogps],
        effect: UpdateEffect | None,
    ) -> OptimizerStep | None:
        if not any(row.trained for row in rows):
            return None
        totals = LossNormalizer(len(rows), sum(len(row.call.output_ids) for row in rows))
        context = StepContext(totals, before, effect)
        rows = weigh_roles(rows, self.config)
        with self.gradient.nothing_left():
            by_role, gram = self.gradient.of_step(rows, context)
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            total = nn.utils.get_total_norm(gradients)
            norm = float(whole_tensor(total))
            if not math.isfinite(norm):
                raise self.gradient.blame(rows, context, norm)
            coherence = self._clip_and_damp(total, norm)
            self.optimizer.step()
            if self._rounded_layers:
                self._rounded_layers.refresh()
        metric_sums = by_role if self.config.role_gradients else {}
        return OptimizerStep(sum(by_role.values(), TokenSums()), norm, gram, metric_sums, coherence)

    def _clip_and_damp(self, total: Tensor, norm: float) -> tuple[float, float] | None:
        """Clip the gradients, whose norm is `total`, and scale them; cosine and scale, if any."""
        bound, coherence = self.config.clip_norm, None
        if self._coherence is not None and self._coherence.is_published:
            coherence = self._coherence.apply(self.parameters)
            total, norm = total * coherence[1], norm * coherence[1]
        if bound and norm > bound:  # torch would multiply by 1 else, which takes time
            nn.utils.clip_grads_with_norm_(self.parameters, bound, total)
        if self._coherence is not None and not self._coherence.is_published:
            coherence = self._coherence.apply(self.parameters)
        return coherence
