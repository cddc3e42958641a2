"""The learner of one policy: rows and advantages in, one or more optimiser steps out.

All arithmetic is in float32, unless `compute` or `weights` say otherwise, and dropout is off, so
that the ratio to the sampler is 1 before the first step. Rows are put in canonical order, and a
loss is normalised by the counts of its whole optimiser step: neither the order of arrival nor the
size of the micro-batches changes the result (the latter up to rounding).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from flowzoo.baselines.learner import batch as batching
from flowzoo.baselines.learner.batch import MicroBatch, SampledTokens
from flowzoo.baselines.learner.choices import RowLayout
from flowzoo.baselines.learner.coherence import Coherence
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.forward import ForwardOutput, ForwardPass, OldLogps, stack_old_logps
from flowzoo.baselines.learner.gang import Alone, Gang
from flowzoo.baselines.learner.hidden_states import fitting_layout
from flowzoo.baselines.learner.logps import prepare
from flowzoo.baselines.learner.loss import LossNormaliser, NonFiniteError, policy_loss
from flowzoo.baselines.learner.metrics import (
    OptimiserStep,
    TokenSums,
    importance_weights,
    row_counts,
    step_metrics,
    with_correction,
)
from flowzoo.baselines.learner.optimizers import make_optimizer
from flowzoo.baselines.learner.renormalise import KeptTokens
from flowzoo.baselines.learner.role_gradients import RoleGradients, RoleGramMatrix
from flowzoo.baselines.learner.rows import (
    TrainingRow,
    make_rows,
    micro_batches,
    non_finite,
    split,
    weigh_roles,
)
from flowzoo.baselines.learner.schedules import ALONE, UpdateTurn, lr_at
from flowzoo.baselines.learner.update_effect import UpdateEffect, sample
from flowzoo.baselines.learner.vocabulary import Entropy
from flowzoo.baselines.learner.weights import FrozenWeights, FullWeights, Weights, whole_tensor
from flowzoo.envs.records import Call
from flowzoo.errors import UsageError

T = TypeVar("T")


class Learner:
    """Trains one causal language model in place: all its weights, or an adapter on it.

    Raises:
        UsageError: the weights are in another number format than the settings say, or the family
            is not supported (see `prepare`).
    """

    def __init__(
        self,
        model: PreTrainedModel | Weights,
        config: LearnerConfig,
        reference: PreTrainedModel | None = None,
        turn: UpdateTurn = ALONE,
    ) -> None:
        """Take hold of a model or of its trained part, and build the optimiser.

        Args:
            model: or `weights`, which say what of it is trained.
            config: the choices.
            reference: what KL terms pull towards; by default the weights as they are now, for
                which an adapter's base serves and a full model is copied.
            turn: whose it is among the policies of a run, whose updates a schedule may count.
        """
        self.weights = FullWeights(model) if isinstance(model, PreTrainedModel) else model
        self.model = self.weights.model
        if any(hasattr(one, "full_tensor") for one in self.model.parameters()):
            raise UsageError(
                "the model is spread over ranks already, and a learner tries it before: make every "
                "learner on a model, then `join` the gang with each"
            )
        self.config = config
        self.layout: RowLayout
        self.layout, self.notes = fitting_layout(self.model, config.layout)
        self.notes += self.weights.notes
        prepare(
            self.model,
            self.layout,
            gradient_checkpointing=config.gradient_checkpointing,
            compile=config.compile,
        )
        self._reference = None
        if config.needs_reference and reference is None:
            self._reference = self.weights.start()
        elif config.needs_reference and reference is not None:
            self._reference = FrozenWeights(prepare(reference, self.layout)).start()
        self._turn = turn
        self.iteration = 0
        """Number of `update` calls so far."""
        self.steps = 0
        """Number of optimiser steps so far: the version of the weights."""
        self.lr_scale = 1.0
        """Factor on the scheduled learning rate."""
        self.parameters = self.weights.parameters()
        self.optimizer = make_optimizer(self.weights, config)
        self.gang: Gang = Alone()
        """Who trains this policy together."""
        self._forward = ForwardPass(config, self.layout, self.model.device)
        self._coherence = (
            Coherence(config.coherence, config.coherence_window) if config.coherence else None
        )

    def join(self, gang: Gang) -> None:
        """Share the work with the ranks of `gang`, all of which do the same; before any update.

        Every learner on the model must exist by now: a sharded model can no longer be tried.
        """
        self.gang = gang
        gang.shard(self.model)
        if self._reference is not None:
            with self._reference() as reference:
                gang.shard(reference)
        self.parameters = self.weights.parameters()
        self.optimizer = make_optimizer(self.weights, self.config)
        if self._coherence is not None:
            self._coherence.gang = gang

    def update(self, calls: Sequence[Call], advantages: Sequence[float]) -> dict[str, float]:
        """Train on `calls` with one advantage each: one iteration.

        Returns the metrics (all per iteration, means over tokens, logarithms natural):
        `learn/loss`, mean over optimiser steps; `learn/grad_norm`, before clipping, largest of the
        steps; `learn/clip_fraction`, `learn/dual_clip_fraction`; `learn/kl`, k3 estimate of
        KL(old || current), `old` as `old_logp` says; `learn/reference_kl` (with a KL term);
        `learn/logp_gap_mean` and `learn/logp_gap_max`, |learner - sampler| before the first step
        changes a weight; `learn/trained_entropy`, of the trained tokens; `learn/sampled_entropy`,
        `sampled_entropy/ROLE`, `signal/ROLE` (see `row_counts`); `learn/update_kl` and
        `learn/update_ratio_max`, what all the steps together did (see `UpdateEffect`); `learn/ess`,
        effective sample size of the ratios as a fraction; `learn/importance` and
        `learn/importance_capped`, mean importance weight and fraction at the cap (`recomputed`);
        `learn/outside_kept`, fraction of tokens that the learner would not have kept
        (`renormalise`); `learn/coherence` and `learn/coherence_scale`;
        `grad/` (see `gram_metrics`) and `trained_entropy/ROLE`, `kl/ROLE`, `clip/ROLE`
        (with `role_gradients`); `learn/rows`, `learn/tokens` (all given),
        `learn/rows_trained`, `learn/tokens_trained` (with a part in the gradient),
        `learn/truncated` (rows), `learn/lr`, `learn/steps` and `learn/skipped` (steps without any
        row to train on, which change nothing). Where nothing was trained the means are absent.

        Raises:
            UsageError: a row cannot be trained on, or the lengths differ.
            NonFiniteError: a loss, gradient or input is not finite. It carries the rows; the step
                in question has changed nothing.
        """
        rows = make_rows(calls, advantages, self.config)
        lr = lr_at(self._tick(), self.config) * self.lr_scale
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        parts = split(rows, self.config)
        with self.weights.active():
            before = self._look_ahead(parts[1:])
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
        """See `LearnerLike`: the learner is here."""
        return work(self, *given)

    def gradients(
        self, groups: Iterable[Sequence[TrainingRow]], totals: LossNormaliser
    ) -> Iterator[list[Tensor]]:
        """The gradient of the loss of each group of rows, as one tensor a parameter.

        The loss is normalised by `totals`, so gradients of groups add up to that of all of them.
        The weights are those of now; nothing is changed. Of a sharded model what comes is this
        rank's part.
        """
        for rows in groups:
            with self._clean_gradients(), self.weights.active():
                batches = micro_batches(rows, self.config, self.layout).values()
                self._accumulate([part for parts in batches for part in parts], totals, {})
                found = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
            yield self.gang.local(found)

    @torch.no_grad()
    def gaps(self, rows: Sequence[SampledTokens]) -> Tensor:
        """|learner - sampler| of the log-prob of every output token of `rows`: (tokens,).

        Every rank has rows of its own.
        """
        found: list[Tensor] = []
        config = self.config
        parts = batching.micro_batches(
            rows, self.layout, config.microbatch_tokens, config.microbatch_rows
        )
        with self.weights.active():
            for number in range(self.gang.rounds(len(parts))):
                part = parts[min(number, len(parts) - 1)]
                batch = self._forward.batch([rows[i] for i in part], [0.0] * len(part))
                logps = self._forward(self.model, batch).logps
                if number < len(parts):
                    found.append((logps - batch.behaviour_logps).abs()[batch.mask].cpu())
        return torch.cat(found)

    def plain_logps(self, rows: Sequence[SampledTokens]) -> list[list[float]]:
        """Log-probs of the output tokens of `rows` by the model itself: temperature 1, no cut."""
        with self.weights.active():
            return [one.tolist() for one in self._forward.plain_logps(self.model, rows)]

    def state_dict(self) -> dict[str, Any]:
        """Optimiser state, counts and running means (the weights are saved on their own)."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "iteration": self.iteration,
            "steps": self.steps,
            "lr_scale": self.lr_scale,
            "coherence": None if self._coherence is None else self._coherence.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned.

        Raises:
            UsageError: it was made with other settings of the coherence regulariser.
        """
        if (state["coherence"] is None) != (self._coherence is None):
            raise UsageError("the coherence regulariser was on in the one and off in the other.")
        self.optimizer.load_state_dict(state["optimizer"])
        self.iteration, self.steps = state["iteration"], state["steps"]
        self.lr_scale = state.get("lr_scale", 1.0)  # versions before callbacks had none
        if self._coherence is not None:
            self._coherence.load_state_dict(state["coherence"], self.parameters)

    def _tick(self) -> int:
        """The schedule's time of this update, which counts from now on."""
        now = self.iteration
        self.iteration += 1
        return self._turn.tick(now) if self.config.schedule_clock == "update" else now

    def _look_ahead(self, parts: Sequence[Sequence[TrainingRow]]) -> Mapping[int, OldLogps]:
        """What the steps after the first need of the weights before it, by the row's place."""
        found: dict[int, OldLogps] = {}
        if self.config.old_logp == "sampler" and self.config.correction == "none":
            return found
        for part in parts:
            micro = micro_batches(part, self.config, self.layout).values()
            for turn, batches in enumerate(micro):
                for rows in self._own(batches, turn):
                    seen = self._forward.old_logps(self.model, [row.call for row in rows])
                    found |= dict(zip((row.place for row in rows), seen, strict=True))
        return found

    def _effect(
        self, rows: Sequence[TrainingRow], parts: Sequence[Sequence[TrainingRow]]
    ) -> UpdateEffect | None:
        """What this update will be measured by; None where it will change nothing."""
        first = next((part for part in parts if any(row.trained for row in part)), None)
        if first is None:
            return None
        chosen = sample(rows, self.iteration, self.config.microbatch_tokens)
        # Of several ranks each computes some rows, and this one needs all.
        coming = {row.place for row in first if row.computed and self.gang.alone}
        return UpdateEffect(self._forward, self.model, chosen, self.iteration, coming)

    def _step(
        self,
        rows: Sequence[TrainingRow],
        before: Mapping[int, OldLogps],
        effect: UpdateEffect | None,
    ) -> OptimiserStep | None:
        """One optimiser step; None where no row has a part in the gradient."""
        if not any(row.trained for row in rows):
            return None
        totals = LossNormaliser(len(rows), sum(len(row.call.output_ids) for row in rows))
        rows = weigh_roles(rows, self.config)
        with self._clean_gradients():
            by_role, gram = self._gradient(rows, totals, before, effect)
            norm = float(
                whole_tensor(
                    nn.utils.clip_grad_norm_(self.parameters, self.config.clip_norm or math.inf)
                )
            )
            if not math.isfinite(norm):
                raise self._blame(rows, totals, before, norm)
            coherence = self._coherence.apply(self.parameters) if self._coherence else None
            self.optimizer.step()
        known = by_role if self.config.role_gradients else {}
        return OptimiserStep(sum(by_role.values(), TokenSums()), norm, gram, known, coherence)

    def _gradient(
        self,
        rows: Sequence[TrainingRow],
        totals: LossNormaliser,
        before: Mapping[int, OldLogps],
        effect: UpdateEffect | None,
    ) -> tuple[dict[str, TokenSums], RoleGramMatrix | None]:
        """Gather the gradient of the loss of `rows` in the parameters."""
        sums: dict[str, TokenSums] = {}
        roles = RoleGradients(self.parameters, self.gang) if self.config.role_gradients else None
        micro = micro_batches(rows, self.config, self.layout)
        for turn, (role, batches) in enumerate(micro.items()):
            sums[role] = self._accumulate(batches, totals, before, effect, turn)
            if roles is not None:
                roles.take(role, sum(row.call.role == role for row in rows))
        return sums, None if roles is None else roles.merge()

    def _accumulate(
        self,
        parts: Sequence[Sequence[TrainingRow]],
        totals: LossNormaliser,
        before: Mapping[int, OldLogps],
        effect: UpdateEffect | None = None,
        turn: int = 0,
    ) -> TokenSums:
        """Add the gradient of all `parts`, whoever computes them, to the parameters'.

        Raises:
            NonFiniteError: a loss is not finite, on any rank; then it is raised on all.
        """
        own, mine, error = self._own(parts, turn), TokenSums(), None
        count = len(self.gang.own(parts, turn))  # the others are stand-ins
        for number, part in enumerate(own):
            self.gang.hand_on(self.model, number == len(own) - 1)
            try:
                sums = self._backward(part, totals, before, effect)
                mine = mine + sums if number < count else mine
            except NonFiniteError as found:
                if self.gang.alone:
                    raise
                error = error or found
        self.gang.add_gradients(self.parameters)
        told = None if error is None else (str(error), error.calls)
        sums = TokenSums()
        for theirs, wrong in self.gang.gather((mine, told)):
            if wrong is not None:
                together = NonFiniteError(wrong[0], range(len(wrong[1])), wrong[1])
                together.told_elsewhere = not self.gang.writes
                raise together
            sums = sums + theirs
        return sums

    def _own(
        self, parts: Sequence[Sequence[TrainingRow]], turn: int
    ) -> list[Sequence[TrainingRow]]:
        """The micro-batches that this rank computes, and stand-ins that weigh nothing.

        Where a forward pass is a collective operation every rank has as many of them.
        """
        own = self.gang.own(parts, turn)
        short = self.gang.rounds(len(own)) - len(own)
        if short:
            rows = [row for part in parts for row in part]
            row = min(rows, key=lambda row: len(row.call.prompt_ids) + len(row.call.output_ids))
            own += [[replace(row, weight=0.0)]] * short
        return own

    def _backward(
        self,
        rows: Sequence[TrainingRow],
        totals: LossNormaliser,
        before: Mapping[int, OldLogps],
        effect: UpdateEffect | None = None,
    ) -> TokenSums:
        """Add the gradient of some rows to the parameters'."""
        batch = self._forward.batch([row.call for row in rows], [row.advantage for row in rows])
        seen = [before[row.place] for row in rows] if before and rows[0].place in before else None
        old, kept = stack_old_logps(seen, batch)
        entropy: Entropy = "grad" if self.config.loss.entropy_coef else "value"
        scores = self._forward(self.model, batch, entropy=entropy, kept=kept)
        if effect is not None:
            effect.take(self.model, rows, batch, scores.states)
        try:
            loss, sums = self._loss(rows, batch, scores, old, totals)
        except NonFiniteError:
            if not self.gang.alone:  # others wait for this pass; nothing is done with its gradient
                scores.logps.sum().backward()
            raise
        loss.backward()
        return sums

    def _loss(
        self, rows: Sequence[TrainingRow], batch: MicroBatch, scores: ForwardOutput,
        old: Tensor | None, totals: LossNormaliser,
    ) -> tuple[Tensor, TokenSums]:  # fmt: skip
        """The loss of some rows; `old` are their log-probs before the first step, if not these."""
        behaviour, importance = batch.behaviour_logps, None
        if self.config.old_logp == "recomputed":
            behaviour = scores.logps.detach() if old is None else old
            importance = importance_weights(behaviour, batch, self.config.importance_cap)
        device = batch.mask.device
        try:
            loss, stats = policy_loss(
                scores.logps, behaviour, batch.advantages, batch.mask, self.config.loss,
                totals=totals, reference_logps=self._reference_logps(batch, scores.kept),
                entropies=scores.entropies,
                row_weights=torch.tensor([row.weight for row in rows], device=device),
                kl_coefs=torch.tensor([row.kl for row in rows], device=device),
                importance=importance,
            )  # fmt: skip
        except NonFiniteError as error:
            raise non_finite("loss", [rows[idx].call for idx in error.rows]) from error
        return loss, with_correction(stats, batch, behaviour, importance, scores, self.config)

    def _reference_logps(self, batch: MicroBatch, kept: KeptTokens | None) -> Tensor | None:
        """Log-probs of the reference, where a KL term needs them."""
        if self._reference is None:
            return None
        with torch.no_grad(), self._reference() as model:
            return self._forward(model, batch, kept=kept).logps

    def _blame(
        self,
        rows: Sequence[TrainingRow],
        totals: LossNormaliser,
        before: Mapping[int, OldLogps],
        norm: float,
    ) -> NonFiniteError:
        """Find the rows whose own gradient is not finite, one by one."""
        guilty: list[Call] = []
        everyone = [row for row in rows if row.computed]
        for row in everyone:
            self.optimizer.zero_grad(set_to_none=True)
            self.gang.hand_on(self.model, True)
            self._backward([row], totals, before)
            grads = self.gang.local([p.grad for p in self.parameters if p.grad is not None])
            if not all(self.gang.gather(all(bool(grad.isfinite().all()) for grad in grads))):
                guilty.append(row.call)
        return non_finite(f"gradient (norm {norm})", guilty or [row.call for row in everyone])

    @contextmanager
    def _clean_gradients(self) -> Iterator[None]:
        """Leave no gradient behind, however the block ends."""
        self.optimizer.zero_grad(set_to_none=True)
        try:
            yield
        finally:
            self.optimizer.zero_grad(set_to_none=True)
