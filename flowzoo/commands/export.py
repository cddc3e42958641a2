"""`flowzoo export`: a trained policy as a folder for transformers, vLLM or peft."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flowzoo.commands.shared import check_folder, check_run, quiet_transformers

if TYPE_CHECKING:
    from flowzoo.baselines.run.export import Exported


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo export`."""

    run: Path = field(metadata={"positional": "RUN"})
    """Directory of the training run."""
    out: Path
    """Folder to write; it must be new or empty."""
    policy: str = ""
    """Name of the policy; required if the run trains several."""
    step: str = "last"
    """`best` (by validation accuracy), `last`, or the number of a step with a checkpoint."""
    merge: bool = False
    """Merge a LoRA adapter into its base and write the whole model."""
    accept_base: bool = False
    """Merge although the base has changed; the export's record says how."""


def run(options: Options) -> int:
    """Export the policy and describe the folder."""
    check_run(options.run)
    check_folder("out", options.out)
    quiet_transformers()
    from flowzoo.baselines.report.card import CardSubject, model_card
    from flowzoo.baselines.run.export import export_policy
    from flowzoo.baselines.run.reading import read_run

    def card(done: Exported) -> str:
        read = read_run(options.run, options.run.resolve().name)
        subject = CardSubject(done.policy, done.step, done.base is not None, done.model)
        return model_card(read, subject, options.out.resolve().name)

    done = export_policy(
        options.run, options.out, policy=options.policy, step=options.step, merge=options.merge,
        accept_base=options.accept_base, card=card,
    )  # fmt: skip
    score = "not evaluated"
    if done.score is not None:
        score = f"validation accuracy {100 * done.score:.1f} %"
    kind = "model" if done.base is None else f"LoRA adapter of {done.base}"
    print(f"policy {done.policy} after step {done.step} ({score}): {kind} in {done.path}")
    return 0
