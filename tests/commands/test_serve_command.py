"""`flowzoo serve` as a user types it, `curl`, and Ctrl-C."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from blocks import blocks_of, commands_of

from flowzoo.agents.policy import Sampling
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.specs import make_policy
from flowzoo.cli import main
from flowzoo.commands.policies import PolicyOptions
from flowzoo.commands.serve import REFUSED, read_key
from flowzoo.envs import make_workflow
from flowzoo.errors import UsageError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "serving.md"
pytestmark = pytest.mark.xdist_group("serve_command")


@contextmanager
def served(*words: str, **options: Any) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """The process of the command, its URL and its models."""
    command = [sys.executable, "-m", "flowzoo.cli", "serve", *words, "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.fullmatch(r"serving (.*) at (http://\S+/v1) \(Ctrl-C ends it\)\n", line)
        assert match, line or process.communicate()[1]
        yield process, match[2], match[1].split(", ")
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str], number: int) -> tuple[int, str]:
    """Exit status and messages after a signal."""
    process.send_signal(number)
    _, messages = process.communicate(timeout=600)
    return process.returncode, messages.strip().rpartition("\n")[2]


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.full)],
)
def test_a_signal_lets_open_requests_finish(number, status, tmp_path):
    (tmp_path / "key").write_text("key\n")
    words = ["voting", "--temperature", "0", "--api-key", f"@{tmp_path / 'key'}", "--grace", "600"]
    with served(*words) as (process, url, models):
        assert models == ["voting_v0", "generator", "aggregator"]
        client = openai.OpenAI(base_url=url, api_key="key", max_retries=0)
        replies: list[Any] = []
        started = threading.Event()

        def ask() -> None:
            question: Any = [{"role": "user", "content": "Compute 3*4+5."}]
            with client.chat.completions.create(
                model="voting_v0", messages=question, n=100, stream=True
            ) as stream:
                for chunk in stream:
                    started.set()
                    replies.append(chunk)

        thread = threading.Thread(target=ask)
        thread.start()
        assert started.wait(60)
        assert ended(process, number) == (status, "interrupted: requests answered: 1")
        thread.join(60)
        assert sum(chunk.choices[0].finish_reason == "stop" for chunk in replies) == 100


@pytest.fixture(scope="module")
def voting() -> Iterator[str]:
    """The URL of a served workflow."""
    with served("voting", "--temperature", "0") as (_, url, _):
        yield url


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_examples_of_the_page_run_as_written(voting, capsys):
    blocks = {block.language: block.text for block in blocks_of(PAGE) if block.text}
    lines = [block.text for block in blocks_of(PAGE) if block.language == ""]
    assert all(args[0] == "serve" for args in commands_of(blocks_of(PAGE)[0]))
    curl = next(line for line in lines if line.startswith("curl"))
    command = shlex.split(curl.replace("http://127.0.0.1:8000/v1", voting))
    done = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert done["choices"][0]["message"]["content"] == "18"
    capsys.readouterr()
    exec(blocks["python"].replace("http://127.0.0.1:8000/v1", voting), {})
    assert capsys.readouterr().out.strip() == blocks["output"].strip()


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl_gets_the_answer_of_a_rollout(voting):
    workflow = make_workflow("voting")
    policy = make_policy("pocket", oracle=workflow, sampling=Sampling(temperature=0.0))
    problem = workflow.task.problem(0, "validation")
    body = {"model": "voting_v0", "messages": [{"role": "user", "content": problem.text}]}
    command = ["curl", "-s", f"{voting}/chat/completions", "-d", json.dumps(body)]
    done = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    policy_map = PolicyMap.shared(policy, workflow.role_counts())
    (record,) = Rollout(workflow, policy_map).run([EpisodeJob(problem)])
    assert done["choices"][0]["message"]["content"] == record.answer


def test_help_has_no_options_that_a_server_refuses(capsys):
    for command, shown in (("eval", True), ("serve", False)):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        texts = capsys.readouterr().out
        assert "--task TEXT" in texts
        for name in REFUSED:
            assert (f"  --{name.replace('_', '-')} " in texts) == shown
    assert main(["completion", "bash"]) == 0
    rows = capsys.readouterr().out
    assert ":eval\t--split\t" in rows
    assert ":serve\t--split\t" not in rows


def test_a_port_that_is_taken_is_one_line(voting, capsys):
    port = voting.rpartition(":")[2].removesuffix("/v1")
    assert main(["serve", "single", "--port", port]) == 2
    assert f"cannot listen on port {port} of 127.0.0.1" in capsys.readouterr().err


def test_a_trained_team_is_served_from_the_directory_of_its_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["--steps", "1", "--problems", "2", "--samples", "2", "--eval-problems", "4"]
    for sharing in ("isolated", "shared"):
        words = ["train", "voting", "--sharing", sharing, "--out", f"runs/{sharing}", *small]
        assert main(words) == 0
    last = Path("runs/isolated/checkpoints/step-00000001/policies")
    each = (f"generator=hf:{last}/generator", f"aggregator=hf:{last}/aggregator")
    together = f"hf:{Path('runs/shared/checkpoints/step-00000001/policies/shared')}"
    named = ("generator=runs/isolated", "aggregator=runs/shared")
    assert sorted(PolicyOptions(("runs/isolated",)).policy) == sorted(each)
    assert PolicyOptions(("runs/shared",)).policy == (together,)
    assert PolicyOptions(named).policy == (each[0], f"aggregator={together}")
    assert PolicyOptions(("generator_1=runs/isolated",)).policy == (
        f"generator_1=hf:{last}/generator",
    )
    with pytest.raises(UsageError, match="unknown role of the run runs/isolated 'judge'"):
        PolicyOptions(("judge=runs/isolated",))
    with served("voting", "--policy", *named, cwd=tmp_path, env={**os.environ}) as (_, url, models):
        client = openai.OpenAI(base_url=url, api_key="any", max_retries=0)
        question: Any = [{"role": "user", "content": "Compute 3*4+5."}]
        for model in models:
            assert client.chat.completions.create(model=model, messages=question).usage


def test_a_key_is_read_from_the_environment_or_a_file(monkeypatch, tmp_path):
    assert read_key("") == ""
    monkeypatch.setenv("FLOWZOO_API_KEY", "of-the-environment")
    assert read_key("") == "of-the-environment"
    (tmp_path / "key").write_text("of-the-file\n")
    assert read_key(f"@{tmp_path / 'key'}") == "of-the-file"
    monkeypatch.setenv("FLOWZOO_API_KEY", "zwei Wörter")
    with pytest.raises(UsageError, match="the API key in FLOWZOO_API_KEY must have only printable"):
        read_key("")
