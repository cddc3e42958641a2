"""What TRL's GRPOTrainer does on given rows, step by step: the numbers of a test of ours.

    make env-trl
    .venv-trl/bin/python benchmarks/trl_golden.py tests/baselines/learner/trl_steps.json

It runs in the environment of TRL and knows nothing of this project. A random model of two layers,
whose weights `tests/baselines/learner/test_trl_steps.py` makes in the same way, takes three
optimizer steps on the same rows at temperature 0.7, so that the second and the third are off
policy. Old log-probs are TRL's own before the first step, those of the reference are those of the
model at the start. In cases with an importance sampling mode the rows come as from vLLM, whose
log-probs differ from the model's at the start by the gaps of the rows; old log-probs are then
computed before every step. Written down are the rows and, for every case, the loss before each
step, the norm of its gradient, and the log-probs after the last.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

STEPS, LR, TEMPERATURE, VOCABULARY = 3, 0.03, 0.7, 23
EPS = 1e-3
"""Of AdamW: with its usual one a weight whose gradient is rounding moves by the whole rate."""
COMMON = {"beta": 0.04, "epsilon": 0.2, "epsilon_high": 0.28, "loss_type": "dapo"}
VLLM = {**COMMON, "beta": 0.0, "scale_rewards": "none", "vllm_importance_sampling_clip_max": 1.5}
CASES: dict[str, dict[str, Any]] = {
    "kl corrected": COMMON,
    "kl plain": {**COMMON, "use_bias_correction_kl": False},
    "no kl": {**COMMON, "beta": 0.0},
    "gspo": {"importance_sampling_level": "sequence", "loss_type": "grpo", "epsilon": 0.05,
             "epsilon_high": 0.1},
    "cispo": {"loss_type": "cispo", "epsilon_high": 2.0},
    "off-policy mask": {**COMMON, "off_policy_mask_threshold": 0.05},
    "token truncate": {**VLLM, "vllm_importance_sampling_mode": "token_truncate",
                       "vllm_importance_sampling_clip_min": 0.8},
    "token mask": {**VLLM, "vllm_importance_sampling_mode": "token_mask"},
    "sequence truncate": {**VLLM, "vllm_importance_sampling_mode": "sequence_truncate",
                          "off_policy_mask_threshold": 0.05},
    "sequence mask": {**VLLM, "vllm_importance_sampling_mode": "sequence_mask",
                      "vllm_importance_sampling_clip_min": 1e-3},
}  # fmt: skip


def make_model() -> Qwen3ForCausalLM:
    """The model; the test of ours makes the same."""
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, intermediate_size=24, tie_word_embeddings=False,
        max_position_embeddings=64,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).float().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=generator) * 0.3
            weight.copy_(1.0 + noise if "norm" in name else noise)
    return model


def make_rows() -> list[dict[str, Any]]:
    """Two prompts with four completions each, of unequal lengths."""
    generator = torch.Generator().manual_seed(1)

    def draw(count: int) -> list[int]:
        return torch.randint(1, VOCABULARY, (count,), generator=generator).tolist()

    prompts = [draw(3), draw(5)]
    advantages = [1.2, -0.8, 0.4, -0.8, -1.5, 0.5, 0.5, 0.5]
    lengths = [4, 7, 2, 5, 6, 1, 3, 8]
    rows: list[dict[str, Any]] = [
        {"prompt": prompts[place // 4], "output": draw(length), "advantage": advantage}
        for place, (length, advantage) in enumerate(zip(lengths, advantages, strict=True))
    ]
    for row, length in zip(rows, lengths, strict=True):
        row["gap"] = (0.4 * torch.randn(length, generator=generator)).tolist()
    return rows


class Recording(GRPOTrainer):
    """The trainer on given rows, with a note of every loss."""

    given: list[dict[str, Any]]
    old: torch.Tensor | None = None

    def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
        rows = self.given
        return (
            [row["prompt"] for row in rows], [row["output"] for row in rows], None,
            ["" for _ in rows], [row["sampler"] for row in rows], {}, None, None,
        )  # fmt: skip

    def _generate_and_score_completions(self, inputs: list[Any]) -> dict[str, torch.Tensor]:
        return super()._generate_and_score_completions(inputs) if self.use_vllm else self.batch()

    def batch(self) -> dict[str, torch.Tensor]:
        """The rows as tensors, with the log-probs at the start."""
        prompts = [torch.tensor(row["prompt"]) for row in self.given]
        outputs = [torch.tensor(row["output"]) for row in self.given]
        prompt_ids = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True, padding_side="left")
        prompt_mask = torch.nn.utils.rnn.pad_sequence(
            [torch.ones_like(one) for one in prompts], batch_first=True, padding_side="left"
        )
        ids = torch.nn.utils.rnn.pad_sequence(outputs, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence(
            [torch.ones_like(one) for one in outputs], batch_first=True
        )
        batch = {
            "prompt_ids": prompt_ids, "prompt_mask": prompt_mask, "completion_ids": ids,
            "completion_mask": mask, "num_items_in_batch": mask.sum(),
            "advantages": torch.tensor([row["advantage"] for row in self.given]),
        }  # fmt: skip
        if self.old is None:
            self.old = self.logps(self.model, batch)
        batch["old_per_token_logps"] = self.old
        if self.beta:
            batch["ref_per_token_logps"] = self.logps(self.ref_model, batch)
        return batch

    @torch.no_grad()
    def logps(self, model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Of every token, by the trainer's own function, at its temperature."""
        found = self._get_per_token_logps_and_entropies(
            model,
            torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1),
            torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1),
            batch["completion_ids"].shape[1],
        )
        return found[0]

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """The trainer's own, noted."""
        loss = super().compute_loss(*args, **kwargs)
        self.losses = [*getattr(self, "losses", []), loss.item()]
        return loss


class Norms(TrainerCallback):
    """Notes the norm of every gradient, before it is clipped."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Note what is logged."""
        if "grad_norm" in (logs or {}):
            self.found.append(float(logs["grad_norm"]))


def run(case: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Three steps under the settings of one case."""
    tokens = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({str(n): n for n in range(VOCABULARY)}, "0")),
        eos_token="0", pad_token="0",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        make_model().save_pretrained(folder)
        tokens.save_pretrained(folder)
        settings = GRPOConfig(
            output_dir=f"{folder}/out", max_steps=STEPS, learning_rate=LR, weight_decay=0.01,
            lr_scheduler_type="constant", max_grad_norm=1.0, optim="adamw_torch", adam_epsilon=EPS,
            per_device_train_batch_size=len(rows), gradient_accumulation_steps=1,
            num_generations=4, max_completion_length=8, temperature=TEMPERATURE,
            mask_truncated_completions=False, use_cpu=True, bf16=False, fp16=False,
            gradient_checkpointing=False, logging_steps=1, save_strategy="no", report_to=[],
            disable_tqdm=True, seed=0, model_init_kwargs={"dtype": "float32"}, **case,
        )  # fmt: skip
        norms = Norms()
        trainer = Recording(
            model=folder,
            reward_funcs=lambda **kwargs: [row["advantage"] for row in rows],  # their means are 0
            args=settings,
            train_dataset=Dataset.from_list([{"prompt": "1"}, {"prompt": "2"}]),
            processing_class=tokens,
            callbacks=[norms],
        )
        trainer.model.eval()  # the model has no dropout; only layers' own flags differ
        trainer.given = rows
        trainer.batch()
        assert trainer.old is not None
        before = lines(trainer.old, rows)
        trainer.given = [
            {**row, "sampler": [logp - gap for logp, gap in zip(line, row["gap"], strict=True)]}
            for row, line in zip(rows, before, strict=True)
        ]
        trainer.use_vllm = "vllm_importance_sampling_mode" in case
        trainer.train()
        after = lines(trainer.logps(trainer.model, trainer.batch()), rows)
    return {
        "settings": case, "losses": trainer.losses, "grad_norms": norms.found,
        "logps_before": before, "logps_after": after,
    }  # fmt: skip


def lines(logps: torch.Tensor, rows: list[dict[str, Any]]) -> list[list[float]]:
    """The log-probs of each row's tokens."""
    pairs = zip(logps, rows, strict=True)
    return [line[: len(row["output"])].tolist() for line, row in pairs]


def main() -> None:
    """Write the file that is named."""
    torch.set_num_threads(1)
    rows = make_rows()
    found: dict[str, Any] = {
        "trl": trl.__version__, "lr": LR, "eps": EPS, "temperature": TEMPERATURE, "rows": rows,
        "cases": {name: run(case, rows) for name, case in CASES.items()},
    }  # fmt: skip
    for name, case in found["cases"].items():
        print(name, case["losses"], case["grad_norms"])
    Path(sys.argv[1]).write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
