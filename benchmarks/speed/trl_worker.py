"""The side of TRL in `learner.py`: its GRPOTrainer, one optimizer step per line on stdin.

Runs in an environment of its own (`make env-trl`) and knows nothing of this project. The trainer's
own loop does the steps; a callback waits for a line before each and answers with a line of JSON:
seconds, CPU-seconds, completion tokens and the process's peak memory so far. `forced` steps train
on the completions of a file, put where the trainer would put what it generated, already padded;
`whole` steps generate with the trainer's own call of transformers. On a GPU, all time is wall time
and memory is the GPU's.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from resting import leave_memory, reclaim_memory  # pyrefly: ignore[missing-import]
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def padded(lists: list[list[int]], *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask, (rows, longest), padded as the trainer pads them."""
    width = max(len(ids) for ids in lists)
    ids = torch.zeros(len(lists), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, tokens in enumerate(lists):
        place = slice(width - len(tokens), width) if left else slice(len(tokens))
        ids[row, place] = torch.tensor(tokens, dtype=torch.int64)
        mask[row, place] = 1
    return ids, mask


class ForcedTrainer(GRPOTrainer):
    """The trainer with completions that are given."""

    given: list[dict[str, Any]]

    def _generate_and_score_completions(self, inputs: list[Any]) -> dict[str, torch.Tensor]:
        if len(inputs) != len(self.given):
            raise SystemExit(f"{len(inputs)} rows are asked for, {len(self.given)} are given")
        prompts, prompt_mask = padded([row["prompt"] for row in self.given], left=True)
        completions, mask = padded([row["output"] for row in self.given], left=False)
        return {
            "prompt_ids": prompts,
            "prompt_mask": prompt_mask,
            "completion_ids": completions,
            "completion_mask": mask,
            "advantages": torch.tensor([row["advantage"] for row in self.given]),
            "num_items_in_batch": mask.sum(),
        }


GPU = torch.cuda.is_available()


def clock() -> float:
    """Seconds of this process, or of the wall where a GPU computes."""
    if GPU:
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


class StepsOnCommand(TrainerCallback):
    """Waits before each step; reports after it."""

    def __init__(self, weights: Path, leaves_memory: bool) -> None:
        self.tokens = 0
        self._weights = weights
        self._leaves_memory = leaves_memory
        self._done = 0
        self._start = (0.0, 0.0)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait for a line; the end of input ends the run."""
        if not sys.stdin.readline():
            raise SystemExit(0)
        if self._leaves_memory:
            reclaim_memory()
        self._start = time.perf_counter(), clock()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report; the weights after the first step are kept for comparison."""
        seconds, cpu = time.perf_counter() - self._start[0], clock() - self._start[1]
        if self._done == 0:
            torch.save(
                {k: v.detach() for k, v in kwargs["model"].state_dict().items()}, self._weights
            )
        self._done += 1
        peak = torch.cuda.max_memory_allocated() / 1024 if GPU else 0
        peak = (peak or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1024
        line = {"seconds": seconds, "cpu": cpu, "tokens": self.tokens, "peak": peak}
        if self._leaves_memory:
            leave_memory()
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def settings(job: dict[str, Any], steps: int) -> GRPOConfig:
    """The trainer's settings: everything that is not the loss is off."""
    return GRPOConfig(
        output_dir=job["folder"], max_steps=steps, learning_rate=job["lr"], weight_decay=0.01,
        lr_scheduler_type="constant", max_grad_norm=1.0, optim="adamw_torch",
        per_device_train_batch_size=job["microbatch"],
        gradient_accumulation_steps=job["rows"] // job["microbatch"],
        num_generations=job["samples"], max_completion_length=job["max_tokens"],
        temperature=1.0, beta=0.0, epsilon=0.2, epsilon_high=0.28, loss_type="dapo",
        mask_truncated_completions=False, scale_rewards="group", use_cpu=not GPU,
        bf16=job.get("bf16", False), fp16=False, gradient_checkpointing=False,
        logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True, seed=0,
        shuffle_dataset=False,
    )  # fmt: skip


def adapter(job: dict[str, Any]) -> Any:
    """Settings of the adapter that is trained, if one is."""
    if job.get("weights") != "adapter":
        return None
    from peft import LoraConfig

    return LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")


def main() -> None:
    """Do steps until the input ends."""
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job["threads"])
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    callback = StepsOnCommand(
        Path(job["folder"]) / "weights.pt", leaves_memory=job.get("leave_memory", False)
    )

    def reward(
        completions: list[Any], completion_ids: list[list[int]], **kwargs: Any
    ) -> list[float]:
        callback.tokens = sum(len(ids) for ids in completion_ids)
        if job.get("reward") == "length":  # it makes replies longer
            return [len(completion[-1]["content"]) / 1000 for completion in completions]
        return [float(len(ids) % 2) for ids in completion_ids]

    rows = job["given"]
    kind = ForcedTrainer if job["mode"] == "forced" else GRPOTrainer
    trainer = kind(
        model=model,
        reward_funcs=reward,
        args=settings(job, 10_000),
        train_dataset=Dataset.from_list([{"prompt": row["messages"]} for row in job["prompts"]]),
        processing_class=AutoTokenizer.from_pretrained(job["model"]),
        callbacks=[callback],
        peft_config=adapter(job),
    )
    if isinstance(trainer, ForcedTrainer):
        trainer.given = rows
        callback.tokens = sum(len(row["output"]) for row in rows)
    trainer.train()


if __name__ == "__main__":
    main()
