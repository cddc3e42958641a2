"""The gradient of the loss: from rows to what the optimiser finds in the parameters.

Micro-batches go through the model one after another, on every rank of a learner group its own, and
what they add up to is the same however they were cut and shared out (up to rounding).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from flowzoo.baselines.learner.batch import MicroBatch
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.forward import ForwardOutput, ForwardPass, OldLogps, stack_old_logps
from flowzoo.baselines.learner.learner_group import LearnerGroup, SingleProcess
from flowzoo.baselines.learner.literals import RowLayout
from flowzoo.baselines.learner.logps import prepare
from flowzoo.baselines.learner.loss import LossNormaliser, NonFiniteError, policy_loss
from flowzoo.baselines.learner.metrics import TokenSums, importance_weights, with_correction
from flowzoo.baselines.learner.renormalize import KeptTokens
from flowzoo.baselines.learner.role_gradients import RoleGradients, RoleGramMatrix
from flowzoo.baselines.learner.rows import TrainingRow, micro_batches, non_finite
from flowzoo.baselines.learner.update_effect import UpdateEffect
from flowzoo.baselines.learner.vocabulary import Entropy
from flowzoo.baselines.learner.weights import FrozenWeights, Weights
from flowzoo.envs.records import Call


class LossGradient:
    """Gathers the gradient of the loss of rows in the parameters; changes no weight."""

    def __init__(
        self,
        weights: Weights,
        config: LearnerConfig,
        layout: RowLayout,
        reference: PreTrainedModel | None,
    ) -> None:
        """Look at a model that is prepared for `layout`.

        Args:
            weights: what of it is trained.
            config: the choices.
            layout: of the rows of a micro-batch.
            reference: what KL terms pull towards; by default the weights as they are now.
        """
        self.config, self._layout, self._model = config, layout, weights.model
        self.forward = ForwardPass(config, layout, weights.model.device)
        self.learner_group: LearnerGroup = SingleProcess()
        self._reference = None
        if config.needs_reference and reference is None:
            self._reference = weights.start()
        elif config.needs_reference and reference is not None:
            self._reference = FrozenWeights(prepare(reference, layout)).start()
        self.parameters = weights.parameters()

    def join(self, learner_group: LearnerGroup, weights: Weights) -> None:
        """Share the work with the ranks of `learner_group`, which has sharded the model."""
        self.learner_group = learner_group
        if self._reference is not None:
            with self._reference() as reference:
                learner_group.shard(reference)
        self.parameters = weights.parameters()

    def look_ahead(self, parts: Sequence[Sequence[TrainingRow]]) -> Mapping[int, OldLogps]:
        """What the steps after the first need of the weights before it, by the row's place."""
        found: dict[int, OldLogps] = {}
        if self.config.old_logp == "sampler" and self.config.correction == "none":
            return found
        for part in parts:
            micro = micro_batches(part, self.config, self._layout).values()
            for turn, batches in enumerate(micro):
                for rows in self._own(batches, turn):
                    seen = self.forward.old_logps(self._model, [row.call for row in rows])
                    found |= dict(zip((row.place for row in rows), seen, strict=True))
        return found

    def of_step(
        self,
        rows: Sequence[TrainingRow],
        totals: LossNormaliser,
        before: Mapping[int, OldLogps],
        effect: UpdateEffect | None,
    ) -> tuple[dict[str, TokenSums], RoleGramMatrix | None]:
        """Gather the gradient of the loss of an optimiser step.

        Args:
            rows: of the step.
            totals: what the loss is normalised by.
            before: what steps after the first need of the weights before it, by the row's place.
            effect: sees the passes of the first step.

        Returns:
            Sums over the tokens of each role, and the products of the roles' gradients (with
            `role_gradients`).

        Raises:
            NonFiniteError: a loss is not finite, on any rank; then it is raised on all.
        """
        sums: dict[str, TokenSums] = {}
        roles = (
            RoleGradients(self.parameters, self.learner_group)
            if self.config.role_gradients
            else None
        )
        micro = micro_batches(rows, self.config, self._layout)
        for turn, (role, batches) in enumerate(micro.items()):
            sums[role] = self.add(batches, totals, before, effect, turn)
            if roles is not None:
                roles.take(role, sum(row.call.role == role for row in rows))
        return sums, None if roles is None else roles.merge()

    def add(
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
        count = len(self.learner_group.local_parts(parts, turn))  # the others are stand-ins
        for number, part in enumerate(own):
            self.learner_group.set_gradient_sync(self._model, number == len(own) - 1)
            try:
                sums = self._backward(part, totals, before, effect)
                mine = mine + sums if number < count else mine
            except NonFiniteError as found:
                if self.learner_group.alone:
                    raise
                error = error or found
        self.learner_group.add_gradients(self.parameters)
        told = None if error is None else (str(error), error.calls)
        sums = TokenSums()
        for theirs, wrong in self.learner_group.gather((mine, told)):
            if wrong is not None:
                together = NonFiniteError(wrong[0], range(len(wrong[1])), wrong[1])
                together.told_elsewhere = not self.learner_group.writes
                raise together
            sums = sums + theirs
        return sums

    def _own(
        self, parts: Sequence[Sequence[TrainingRow]], turn: int
    ) -> list[Sequence[TrainingRow]]:
        """The micro-batches that this rank computes, and stand-ins that weigh nothing.

        Where a forward pass is a collective operation every rank has as many of them.
        """
        own = self.learner_group.local_parts(parts, turn)
        short = self.learner_group.num_forward_passes(len(own)) - len(own)
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
        batch = self.forward.batch([row.call for row in rows], [row.advantage for row in rows])
        seen = [before[row.place] for row in rows] if before and rows[0].place in before else None
        old, kept = stack_old_logps(seen, batch)
        entropy: Entropy = "grad" if self.config.loss.entropy_coef else "value"
        scores = self.forward(self._model, batch, entropy=entropy, kept=kept)
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
            return self.forward(model, batch, kept=kept).logps

    def blame(
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
            self.clear()
            self.learner_group.set_gradient_sync(self._model, True)
            self._backward([row], totals, before)
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
