"""lm-evaluation-harness: a served workflow as a model, which answers as in `flowzoo eval`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rows import Row, report

from flowzoo.agents.evaluation.evaluate import read_episodes
from flowzoo.cli import main as flowzoo

N = 24
TASK = """
task: served
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{file}"}}}}
test_split: test
output_type: generate_until
doc_to_text: question
doc_to_target: gold
generation_kwargs: {{until: [], do_sample: false, temperature: 0.0}}
metric_list: [{{metric: exact_match}}]
"""


def served() -> None:
    """Answers at temperature 0 are equal one by one, and so is the share of right ones."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = ["voting", "--temperature", "0", "--max-tokens", "64", "--policy", "pocket"]
        words = ["eval", *settings, "--n", str(N), "--out", str(folder / "ours")]
        assert flowzoo(words) == 0
        records = read_episodes(folder / "ours" / "episodes.jsonl")
        rows = [{"question": record.text, "gold": record.gold} for record in records]
        file = folder / "problems.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        (folder / "served.yaml").write_text(TASK.format(file=file), encoding="utf-8")
        command = [sys.executable, "-m", "flowzoo.cli", "serve", *settings, "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            url = re.search(r"http://\S+/v1", server.stdout.readline())
            assert url is not None
            try:
                ask(folder, f"model=voting_v0,base_url={url[0]}/chat/completions,num_concurrent=8")
            finally:
                server.terminate()
        (found,) = (folder / "theirs").rglob("samples_served_*.jsonl")
        theirs = [json.loads(line) for line in found.read_text("utf-8").splitlines()]
    theirs.sort(key=lambda row: row["doc_id"])
    answers = [row["resps"][0][0] for row in theirs]
    assert answers == [record.answer or "" for record in records]
    right = [bool(row["exact_match"]) for row in theirs]
    assert right == [record.answer == record.gold for record in records]
    assert 0 < sum(right) < N


def ask(folder: Path, settings: str) -> None:
    """Run the harness as its command line."""
    words = ["--model", "local-chat-completions", "--model_args", settings, "--tasks", "served"]
    words += ["--include_path", str(folder), "--apply_chat_template", "--log_samples"]
    words += ["--output_path", str(folder / "theirs")]
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": "any"}
    subprocess.run([sys.executable, "-m", "lm_eval", *words], check=True, env=variables)


if __name__ == "__main__":
    report(
        "lm-evaluation-harness",
        ["lm_eval"],
        [Row("`local-chat-completions`; answers are those of `flowzoo eval`", served, "`serve`")],
    )
