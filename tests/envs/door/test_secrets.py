"""Environment of programs that are commands, and secrets of programs in records."""

import html
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agent_programs import Client, play_together

from flowzoo.agents.evaluation.evaluate import EvaluationDirectory, evaluate
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.specs import make_policy
from flowzoo.baselines.run.directory import RunDirectory, plain
from flowzoo.envs import EpisodeRecord, Workflow
from flowzoo.envs.external.program import OpenAIProgram
from flowzoo.errors import UsageError

SECRETS = {
    "HF_TOKEN": "hf_ThisIsSecret00",
    "AWS_SECRET_ACCESS_KEY": 'wJalr/XUtn+FE"MI\\K7MDENG',
    "PYTHON_KEYRING_PASSWORD": "a secret in words",
    "PYTHON_INDEX_PASS": "pass-of-an-index",
    "WANDB_API_KEY": "0123456789abcdef0123",
    "KAGGLE_KEY": "kaggle-0000-1111",
    "GITHUB_PAT": "pat of a user of it",
    "PGPASSWORD": "p:g/p@ssw\u00f6rd!",
    "MYSQL_PWD": "<b>mysql</b>&amp;",
    "SENTRY_DSN": "key@sentry.invalid/12",
    "AZURE_STORAGE_CONNECTION_STRING": "AccountName=a;Key=b==",
    "SSH_PASSPHRASE": "correct horse battery",
}
SHOWN = " ".join(SECRETS.values())
USUAL = {
    "PATH": os.environ["PATH"],
    "LC_TIME": "C",
    "PYTHONHASHSEED": "3",
    "https_proxy": "http://user:word@127.0.0.1:1",
    "REQUESTS_CA_BUNDLE": "/none",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SECRETS, **USUAL, "MY_SETTING": "7"}.items():
        monkeypatch.setenv(name, value)


def command(source: str) -> tuple[str, ...]:
    return sys.executable, "-S", "-c", source


def environment_of(**settings: Any) -> dict[str, str]:
    source = command("import json, os; print(json.dumps(dict(os.environ)))")
    (episode,) = play_together(OpenAIProgram(source, roles="writer", **settings))
    return json.loads(episode.finished().answer or "")


def test_a_command_gets_the_usual_variables_and_the_named_ones():
    environment = environment_of()
    assert {name: environment.get(name) for name in USUAL} == USUAL
    assert not environment.keys() & {*SECRETS, "MY_SETTING"}
    assert environment["OPENAI_BASE_URL"].startswith("http://127.0.0.1:")
    environment = environment_of(env="MY_SETTING, HF_TOKEN")
    assert environment["MY_SETTING"] == "7"
    assert environment.keys() & SECRETS.keys() == {"HF_TOKEN"}


def solve(problem: str, base_url: str, key: str) -> str:
    Client(base_url, key).ask("writer", f"{SHOWN} {problem}")
    return SHOWN


def fail(problem: str, base_url: str, key: str) -> str:
    raise RuntimeError("x" * 470 + SHOWN)  # a reason has 500 characters


PRINT = "import os, sys; print(*map(os.environ.get, sys.argv[1:]))"


def played(workflow: Workflow, folder: Path) -> EpisodeRecord:
    """The record of an evaluation that is saved in `folder`."""
    policy_map = PolicyMap.shared(make_policy("pocket", oracle=workflow), workflow.role_counts())
    store = EvaluationDirectory(folder, {})
    (record,), _ = evaluate(workflow, policy_map, [workflow.task.problem(0)], store=store)
    return record


@pytest.mark.parametrize("name", ["function", "failure", "command"])
def test_no_record_has_the_value_of_a_secret_variable(tmp_path, name):
    program: Any = {
        "function": lambda: OpenAIProgram(solve, roles="writer", at_once=1),
        "failure": lambda: OpenAIProgram(fail, roles="writer"),
        "command": lambda: OpenAIProgram(
            (*command(PRINT), *SECRETS), roles="writer", env=",".join(SECRETS)
        ),
    }[name]()
    record = played(program, tmp_path / "evaluation")
    if name != "failure":  # a record in memory, which is graded and trained on, is as it was
        assert record.answer == SHOWN
    path = tmp_path / "transcripts.jsonl"
    RunDirectory._write_lines(path, [plain(record)])
    for file in (path, tmp_path / "evaluation" / "episodes.jsonl"):
        text = file.read_text(encoding="utf-8")
        assert "[redacted]" in text
        for value in SECRETS.values():
            assert json.dumps(value)[1:-1] not in text
            assert value[:9] not in text
        (row,) = map(json.loads, text.splitlines())
        assert row["score"] == record.score
        for call, saved in zip(record.calls, row["calls"], strict=True):
            assert SHOWN in call.messages[-1]["content"]
            assert saved["messages"][-1]["content"].startswith("[redacted] [redacted] ")
            ids = saved.get("prompt_ids")
            assert ids is None or (ids == [0] * len(call.prompt_ids) and any(call.prompt_ids))


def test_a_record_without_secrets_is_written_as_it_is(tmp_path):
    workflow = OpenAIProgram(
        lambda problem, url, key: Client(url, key).ask("writer", problem), roles="writer"
    )
    record = played(workflow, tmp_path)
    line = (tmp_path / "episodes.jsonl").read_text(encoding="utf-8")
    assert line == json.dumps(record.to_json()) + "\n"


def test_failures_of_scripts_are_saved_without_secrets(tmp_path):
    class Broken(OpenAIProgram):
        def _outcome(self, end: Any, uncalled: int) -> Any:
            raise RuntimeError(f"no outcome for {end.answer}")

    workflow, path = Broken(solve, roles="writer", at_once=1), tmp_path / "failures.jsonl"
    policy_map = PolicyMap.shared(make_policy("pocket", oracle=workflow), workflow.role_counts())
    rollout = Rollout(workflow, policy_map, on_error="count", failures=path)
    assert rollout.run([EpisodeJob(workflow.task.problem(0))]) == []
    text = path.read_text(encoding="utf-8")
    assert "no outcome for" in text
    assert "ThisIsSecret" not in text


def test_variables_of_a_program_are_a_setting(tmp_path):
    usual = OpenAIProgram(command(""), roles="writer")
    assert "env" not in usual.spec
    named = OpenAIProgram(command(""), roles="writer", env=["MY_SETTING"])
    assert named.spec["env"] == ("MY_SETTING",)
    assert named.spec_digest != usual.spec_digest
    with pytest.raises(UsageError, match="'NO_SUCH_VARIABLE': set it, or leave it out"):
        OpenAIProgram(command(""), roles="writer", env="NO_SUCH_VARIABLE")
    with pytest.raises(UsageError, match="got 'True'"):  # what `--options env=true` gives
        OpenAIProgram(command(""), roles="writer", env=True)
    with pytest.raises(UsageError, match="env=MY_SETTING is for commands"):
        OpenAIProgram(solve, roles="writer", env="MY_SETTING")


LEAK = """
import logging, os, sys
SHOWN = " ".join(map(os.environ.get, os.environ["NAMES"].split()))

def reward(episode):
    logging.getLogger("flowzoo").warning("seen: %s", SHOWN)
    for piece in [*SHOWN, "\\n", *SHOWN] if os.environ["WAY"] == "print" else []:
        print(piece, end="", flush=True)
    if os.environ["WAY"] == "error":
        raise RuntimeError(SHOWN)
    return 0.5

def callback(step):
    if step.step:
        step.stop(SHOWN)
"""


def texts_of(folder: Path) -> list[str]:
    """The texts of all files."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".py"]
    return [path.read_text(encoding="utf-8", errors="replace") for path in files]


def assert_clean(texts: list[str]) -> None:
    for value in SECRETS.values():
        for form in (value, json.dumps(value)[1:-1], html.escape(value)):
            assert not [text for text in texts if form in text], form


def test_no_file_of_a_matrix_or_its_pages_has_a_secret(tmp_path):
    (tmp_path / "leak.py").write_text(LEAK)
    (tmp_path / "m.toml").write_text(
        "seeds = [0]\n[settings]\nsteps = 2\nproblems = 1\nsamples = 2\neval_problems = 2\n"
        'max_tokens = 16\nreward = "leak.py:reward"\ncallback = ["leak.py:callback"]\n'
        '[[cells]]\nworkflow = ["single"]\n'
    )
    variables = {**os.environ, "NAMES": " ".join(SECRETS), "WAY": "print"}
    for line in ("matrix m.toml --out runs --trust", "report runs --trust"):
        with (tmp_path / f"{line.split()[0]}.out").open("w") as out:
            done = subprocess.run(
                [sys.executable, "-m", "flowzoo", *line.split()], cwd=tmp_path, stdout=out,
                stderr=out, env=variables,
            )  # fmt: skip
        assert done.returncode == 0, (tmp_path / f"{line.split()[0]}.out").read_text()
    (log,) = (path.read_text() for path in tmp_path.rglob("log.txt"))
    assert "seen: [redacted] [redacted]" in log
    assert log.count("[redacted] [redacted]") >= 3
    texts = texts_of(tmp_path)
    assert len(texts) > 10
    assert_clean(texts)


@pytest.mark.parametrize("way", ["error", "traceback", "log"])
def test_what_a_command_says_and_writes_has_no_secrets(way, tmp_path):
    (tmp_path / "leak.py").write_text(LEAK)
    line = [sys.executable, "-m", "flowzoo", "train", "single", "--reward", "leak.py:reward",
            "--callback", "leak.py:callback", "--steps", "2", "--problems", "1", "--samples", "2",
            "--eval-problems", "2", "--max-tokens", "16", "--out", "run"]  # fmt: skip
    variables = {"NAMES": " ".join(SECRETS), "WAY": "log" if way == "log" else "error"}
    done = subprocess.run(
        [*line, "--verbose"] if way == "traceback" else line, cwd=tmp_path, capture_output=True,
        text=True, env={**os.environ, **variables},
    )  # fmt: skip
    assert done.returncode == (0 if way == "log" else 1), done.stderr
    assert "seen: [redacted] [redacted]" in done.stderr
    assert_clean([done.stdout, done.stderr, *texts_of(tmp_path / "run")])
