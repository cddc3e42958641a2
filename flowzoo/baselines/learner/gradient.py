"""The gradient of the loss of training rows."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from flowzoo.baselines.learner.batch import Microbatch, TrainingRow, non_finite, role_microbatches
from flowzoo.baselines.learner.config import LearnerConfig, RowLayout
from flowzoo.baselines.learner.correction import correct
from flowzoo.baselines.learner.forward import (
    ForwardOutput,
    ForwardPass,
    KeptTokens,
    OldLogps,
    stack_old_logps,
)
from flowzoo.baselines.learner.gradient_stats import RoleGradients, RoleGramMatrix
from flowzoo.baselines.learner.hidden_states import prepare
from flowzoo.baselines.learner.learner_group import LearnerGroup
from flowzoo.baselines.learner.loss import LossNormalizer, NonFiniteError, policy_loss
from flowzoo.baselines.learner.metrics import TokenSums, token_sums
from flowzoo.baselines.learner.update_effect import UpdateEffect
from flowzoo.baselines.learner.vocabulary import Entropy
from flowzoo.baselines.learner.weights import FrozenWeights, Weights
from flowzoo.envs.records import Call


class StepContext(NamedTuple):
    """Values that the rows of an optimizer step share."""

    totals: LossNormalizer
    before: Mapping[int, OldLogps]
    """By the row's index, where they were looked up."""
    effect: UpdateEffect | None = None


class LossGradient:
    """Gathers the gradient of the loss of rows in the parameters; changes no weight."""

    def __init__(
        self,
        weights: Weights,
        config: LearnerConfig,
        layout: RowLayout,
        reference: PreTrainedModel | None,
    ) -> None:
        self.config, self._layout, self._model = config, layout, weights.model
        self.forward = ForwardPass(config, layout, weights.model)
        self.learner_group = LearnerGroup()
        self._reference = None
        if config.needs_reference:
            start = weights if reference is None else FrozenWeights(prepare(reference, layout))
            self._reference = start.start()
        self.parameters = weights.parameters()

    def join(self, learner_group: LearnerGroup, weights: Weights) -> None:
        """Share the work with the ranks of `learner_group`, which has sharded the model."""
        self.learner_group = learner_group
        if self._reference is not None:
            with self._reference() as reference:
                learner_group.shard(reference)
        self.parameters = weights.parameters()

    def look_ahead(self, parts: Sequence[Sequence[TrainingRow]]) -> Mapping[int, OldLogps]:
        """Log-probs under the weights before the first step, by the row's index."""
        old_logps: dict[int, OldLogps] = {}
        if self.config.old_logp == "sampler" and self.config.correction == "none":
            return old_logps
        for part in parts:
            micro = role_microbatches(part, self.config, self._layout).values()
            for turn, batches in enumerate(micro):
                for rows in self._local_parts(batches, turn):
                    seen = self.forward.old_logps(self._model, [row.call for row in rows])
                    old_logps |= dict(zip((row.index for row in rows), seen, strict=True))
        return old_logps

    def of_step(
        self, rows: Sequence[TrainingRow], context: StepContext
    ) -> tuple[dict[str, TokenSums], RoleGramMatrix | None]:
        """Gather the gradient of a step's loss; sums by role, and the roles' Gram matrix."""
        sums: dict[str, TokenSums] = {}
        roles = None
        if self.config.role_gradients:
            roles = RoleGradients(self.parameters, self.learner_group)
        micro = role_microbatches(rows, self.config, self._layout)
        for turn, (role, batches) in enumerate(micro.items()):
            sums[role] = self.add(batches, context, turn)
            if roles is not None:
                roles.take(role, sum(row.call.role == role for row in rows))
        return sums, None if roles is None else roles.merge()

    def add(
        self, parts: Sequence[Sequence[TrainingRow]], context: StepContext, turn: int = 0
    ) -> TokenSums:
        """Add the gradient of all `parts`, on whichever rank, to the parameters'."""
        # A loss that is not finite on one rank is raised on all, once no rank waits for a pass.
        local_parts, local_sums, error = self._local_parts(parts, turn), TokenSums(), None
        count = len(self.learner_group.local_parts(parts, turn))  # the others are stand-ins
        for number, part in enumerate(local_parts):
            self.learner_group.set_gradient_sync(self._model, number == len(local_parts) - 1)
            try:
                sums = self._backward(part, context)
                local_sums = local_sums + sums if number < count else local_sums
            except NonFiniteError as non_finite_error:
                if self.learner_group.alone:
                    raise
                error = error or non_finite_error
        self.learner_group.add_gradients(self.parameters)
        failure = None if error is None else (str(error), error.calls)
        sums = TokenSums()
        for rank_sums, rank_failure in self.learner_group.gather((local_sums, failure)):
            if rank_failure is not None:
                shared_error = NonFiniteError(
                    rank_failure[0], range(len(rank_failure[1])), rank_failure[1]
                )
                shared_error.reported_elsewhere = not self.learner_group.writes
                raise shared_error
            sums = sums + rank_sums
        return sums

    def _local_parts(
        self, parts: Sequence[Sequence[TrainingRow]], turn: int
    ) -> list[Sequence[TrainingRow]]:
        # Where a forward pass is a collective operation every rank computes as many microbatches:
        # stand-ins weigh nothing.
        local_parts = self.learner_group.local_parts(parts, turn)
        short = self.learner_group.num_forward_passes(len(local_parts)) - len(local_parts)
        if short:
            rows = [row for part in parts for row in part]
            row = min(rows, key=lambda row: len(row.call.prompt_ids) + len(row.call.output_ids))
            local_parts += [[replace(row, weight=0.0)]] * short
        return local_parts

    def _backward(self, rows: Sequence[TrainingRow], context: StepContext) -> TokenSums:
        totals, before, effect = context
        batch = self.forward.batch([row.call for row in rows], [row.advantage for row in rows])
        seen = [before[row.index] for row in rows] if before and rows[0].index in before else None
        old, kept_tokens = stack_old_logps(seen, batch)
        entropy: Entropy = "grad" if self.config.loss.entropy_coef else "value"
        scores = self.forward(self._model, batch, entropy=entropy, kept_tokens=kept_tokens)
        if effect is not None:
            effect.take(self._model, rows, batch, scores.states)
        try:
            loss, sums = self._loss(rows, batch, scores, old, totals)
        except NonFiniteError:
            if not self.learner_group.alone:
                # other ranks wait for this pass; nothing is done with its gradient
                scores.logps.sum().backward()
            raise
        loss.backward()
        return sums

    def _loss(
        self, rows: Sequence[TrainingRow], batch: Microbatch, scores: ForwardOutput,
        old: Tensor | None, totals: LossNormalizer,
    ) -> tuple[Tensor, TokenSums]:  # fmt: skip
        now = scores.logps.detach()
        old = now if old is None else old
        correction = correct(now, old, batch, self.config)
        recomputed = self.config.old_logp == "recomputed"
        device = batch.mask.device
        try:
            loss, stats = policy_loss(
                scores.logps, old if recomputed else batch.behavior_logps, batch.advantages,
                batch.mask, self.config.loss, totals=totals,
                reference_logps=self._reference_logps(batch, scores.kept_tokens),
                entropies=scores.entropies,
                row_weights=torch.tensor([row.weight for row in rows], device=device),
                kl_coefs=torch.tensor([row.kl for row in rows], device=device),
                importance=correction.weights,
                sampler_logps=batch.behavior_logps if recomputed else None,
            )  # fmt: skip
        except NonFiniteError as error:
            calls = [rows[idx].call for idx in error.rows]
            raise non_finite("loss", calls, str(error).rstrip(".")) from error
        return loss, token_sums(stats, correction, scores, self.config)

    def _reference_logps(self, batch: Microbatch, kept_tokens: KeptTokens | None) -> Tensor | None:
        if self._reference is None:
            return None
        with torch.no_grad(), self._reference() as model:
            return self.forward(model, batch, kept_tokens=kept_tokens).logps

    def blame(
        self, rows: Sequence[TrainingRow], context: StepContext, norm: float
    ) -> NonFiniteError:
        """Find the rows whose own gradient is not finite, one by one."""
        guilty: list[Call] = []
        everyone = [row for row in rows if row.computed]
        for row in everyone:
            self.clear()
            self.learner_group.set_gradient_sync(self._model, True)
            self._backward([row], context._replace(effect=None))
            grads = self.learner_group.local(
                [p.grad for p in self.parameters if p.grad is not None]
            )
            if not all(
                self.learner_group.gather(all(bool(grad.isfinite().all()) for grad in grads))
            ):
                guilty.append(row.call)
        return non_finite(f"gradient (norm {norm})", guilty or [row.call for row in everyone])

    def clear(self) -> None:
        """Leave no gradient behind."""
        for parameter in self.parameters:
            parameter.grad = None

    @contextmanager
    def nothing_left(self) -> Iterator[None]:
        """No gradient is there when the block begins, and none when it ends, however it does."""
        self.clear()
        try:
            yield
        finally:
            self.clear()
