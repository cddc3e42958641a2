"""`datasets` and TRL: recorded episodes that `flowzoo dataset` wrote, and training in workflows."""

from __future__ import annotations

import contextlib
import io
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import datasets
from rows import Row, example, report
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer
from trl_adapters import all_roles, one_role, role_of_several, stops, tool_calls

from flowzoo import cli
from flowzoo.agents.pocket import pocket_path

datasets.disable_progress_bars()
WRITTEN = "`flowzoo dataset`"
SPEC = "`flowzoo.adapters.trl_spec.TRLSpec`"
WORKER = "`flowzoo.adapters.trl_worker.TRLRolloutWorker`; its `train` needs CUDA"


@lru_cache(maxsize=1)
def folder() -> Path:
    """A data set of 12 episodes of voting."""
    root = Path(tempfile.mkdtemp())
    played = ["eval", "voting", "--policy", "scripted:0.6", "--n", "12", "--out", f"{root}/eval"]
    for words in (played, ["dataset", f"{root}/eval", "--out", f"{root}/voting-episodes"]):
        with contextlib.redirect_stdout(io.StringIO()):
            assert cli.main(words) == 0
    return root / "voting-episodes"


def loaded(table: str) -> Any:
    """A table of it, a `Dataset`."""
    return datasets.load_dataset(str(folder()), table, split="train", cache_dir=str(folder() / "c"))


def replies() -> None:
    """Rows are replies, prompts lists of messages."""
    table = loaded("replies")
    assert table.num_rows == 48
    assert table[0]["prompt"][0]["role"] == "user"
    assert {row["role"] for row in table} == {"generator", "aggregator"}


def episodes() -> None:
    """Rows are episodes, with the scores that the replies have."""
    scores = {row["episode"]: row["score"] for row in loaded("episodes")}
    assert len(scores) == 12
    assert all(scores[row["episode"]] == row["score"] for row in loaded("replies"))


def block() -> None:
    """The Python of docs/episodes.md, in the folder where the data set lies."""
    with contextlib.chdir(folder().parent):
        assert 0 < example("episodes.md", "load_dataset")["right"].num_rows < 36


def trained() -> None:
    """The example of TRLSpec."""
    quiet = contextlib.redirect_stdout(io.StringIO())
    with tempfile.TemporaryDirectory() as out, contextlib.chdir(out), quiet:
        assert example("libraries.md", "TRLSpec(")["trainer"].state.global_step == 3


def tuned() -> None:
    """A step of supervised training changes the weights; prompts are no labels."""
    path = str(pocket_path("math"))
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(path),
        AutoTokenizer.from_pretrained(path),
    )
    before = model.lm_head.weight.detach().clone()
    rows = loaded("replies").select_columns(["prompt", "completion"])
    with tempfile.TemporaryDirectory() as out:
        settings = SFTConfig(
            out, max_steps=1, per_device_train_batch_size=8, report_to=[], use_cpu=True, bf16=False,
            disable_tqdm=True, logging_strategy="no", save_strategy="no", learning_rate=1e-3,
        )  # fmt: skip
        with contextlib.redirect_stdout(io.StringIO()):
            trainer: Any = SFTTrainer(
                model, settings, train_dataset=rows, processing_class=tokenizer
            )
            trainer.train()
    labels = trainer.data_collator([trainer.train_dataset[0]])["labels"]
    assert 0 < (labels == -100).sum() < labels.numel()
    assert (model.lm_head.weight.detach() != before).any()


report(
    "datasets, TRL",
    ["datasets", "pyarrow", "trl", "transformers"],
    [
        Row('`load_dataset(FOLDER, "replies")`', replies, WRITTEN),
        Row('`load_dataset(FOLDER, "episodes")`', episodes, WRITTEN),
        Row("the example of [episodes.md](episodes.md)", block, WRITTEN),
        Row("`SFTTrainer` on the replies, prompts left out of the loss", tuned, WRITTEN),
        Row("the example [below](#one-agent-in-trls-grpotrainer)", trained, SPEC),
        Row("`GRPOTrainer` on one role, others played for it; rewards are ours", one_role, SPEC),
        Row("the same for a role of several agents, not all of them asked", role_of_several, SPEC),
        Row(
            "the same for a role that is asked several times", tool_calls, f'{SPEC}, `turns="many"`'
        ),
        Row("what cannot be handed on ends the run, and is no tool result", stops, SPEC),
        Row(
            "rollout worker of `AsyncGRPOTrainer`, all roles; rows and advantages are ours",
            all_roles,
            WORKER,
        ),
    ],
)
