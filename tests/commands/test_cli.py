"""`flowzoo eval`, `play` and `train` as a user types them, on math and on programs."""

import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from dataclasses import fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from processes import run_python

import flowzoo
from flowzoo import cli
from flowzoo.agents.specs import FORMS
from flowzoo.agents.traits import has_bfloat16
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.sft import SftConfig
from flowzoo.cli import main
from flowzoo.commands import doctor, line
from flowzoo.commands.line import parse
from flowzoo.commands.policies import PolicyOptions
from flowzoo.commands.progress.stopping import StopSignals
from flowzoo.commands.sft import CARRIED, train_words
from flowzoo.commands.shared import program_name
from flowzoo.commands.train import pocket_note
from flowzoo.envs import WORKFLOWS, make_workflow
from flowzoo.envs.settings import read_settings
from flowzoo.envs.tasks import TASKS
from flowzoo.errors import UsageError
from flowzoo.extras import remedy
from flowzoo.start import end_at_once

COMMANDS = (
    "list", "algorithms", "play", "prompts", "eval", "regrade", "leaderboard", "filter", "sft",
    "train", "matrix", "report", "why", "swap", "export", "serve", "dataset", "new", "doctor",
    "sandbox build", "sandbox check", "completion",
)  # fmt: skip
ROLES = ("generator", "aggregator")


def flowzoo_command(*args: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flowzoo.cli", *args]
    return subprocess.run(command, capture_output=True, text=True, **options)


@pytest.mark.parametrize("module", ["flowzoo", "flowzoo.cli"])
def test_version(module):
    command = [sys.executable, "-m", module, "--version"]
    assert subprocess.check_output(command, text=True) == f"flowzoo {flowzoo.__version__}\n"


def test_the_name_is_enough_where_it_is_this_program(tmp_path, monkeypatch):
    script = tmp_path / "my env" / "bin" / "flowzoo"
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setattr("sys.argv", [str(script)])
    monkeypatch.setenv("PATH", os.defpath)
    assert program_name() == f"'{script}'"
    monkeypatch.setenv("PATH", str(script.parent))
    assert program_name() == "flowzoo"
    monkeypatch.setattr("sys.argv", ["/somewhere/flowzoo/cli.py"])
    assert program_name() == "flowzoo"


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["--help"])
    assert not end.value.code
    texts = capsys.readouterr().out
    assert list(line.COMMANDS) == list(dict.fromkeys(name.split()[0] for name in COMMANDS))
    for name, what in line.COMMANDS.items():
        assert re.search(rf"(?m)^  {name} ", texts)
        assert " ".join(what.split()[:4]) in texts
        assert line.options_of(name).__doc__


def test_no_words_print_the_help(capsys):
    with contextlib.suppress(SystemExit):
        cli.main([])
    assert "usage: flowzoo" in capsys.readouterr().out


@cache
def help_of(name: str) -> str:
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setenv("COLUMNS", "120")
        with pytest.raises(SystemExit) as end:
            cli.main([*name.split(), "--help"])
    assert not end.value.code
    return output.getvalue()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_documents_every_option(name):
    blocks = re.split(r"(?m)^  (?=--?[a-z])", help_of(name))[1:]
    assert len(blocks) >= 3
    for block in blocks:
        prose = re.sub(r"^(-h, )?--\S+( \[?[{A-Z]\S*( \.\.\.\]| FLOAT)?)?", "", block)
        words = prose.partition("(default:")[0].split()
        assert len(words) >= 3, block


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("eval", "default: `all` for a data file, `validation` for a generator."),
        ("filter", "Split of the problems. (default: train)"),
    ],
)
def test_help_tells_one_default(command, text):
    row = help_of(command).partition("  --split ")[2].partition("  --seed ")[0]
    assert text in " ".join(row.split())
    assert row.count("default:") == 1


def test_help_names_both_forms_of_a_workflow_of_ones_own():
    for name in ("play", "prompts", "eval", "filter", "sft", "train", "serve"):
        arguments = help_of(name).partition("arguments:")[2].partition("options:")[0]
        assert "module:Class" in arguments, name
        assert "file.py:Class" in arguments, name


def test_the_usage_line_has_the_required_options():
    for usage in (
        "export [OPTIONS] RUN --out PATH", "dataset [OPTIONS] FOLDER [FOLDER ...] --out PATH",
        "filter [OPTIONS] [WORKFLOW] --out PATH", "eval [OPTIONS] [WORKFLOW]",
    ):  # fmt: skip
        assert help_of(usage.split()[0]).startswith(f"usage: flowzoo {usage}\n")


@pytest.mark.usual(1)
@pytest.mark.parametrize("name", ["train", "eval", "sandbox check"])
def test_help_loads_nothing_heavy(name):
    code = (
        "import sys\nfrom flowzoo.cli import main\n"
        f"try:\n    main({[*name.split(), '--help']})\nexcept SystemExit:\n    pass\n"
        "print([n for n in ('torch', 'sympy', 'numba', 'transformers') if n in sys.modules])\n"
        "print([n for n in ('eval', 'sandbox', 'play') if f'flowzoo.commands.{n}' in sys.modules])"
    )
    heavy, commands = run_python(code).splitlines()[-2:]
    assert heavy == "[]"
    named = name.split()[0]
    assert commands == str([named] if named in ("eval", "sandbox") else [])


def test_a_line_that_cannot_be_read_is_status_2():
    done = flowzoo_command("evl")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def doctor_that(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    """Status of a command that raises."""

    def fail(options):
        raise error

    monkeypatch.setattr(doctor, "run", fail)
    return cli.main(["doctor"])


def test_an_error_of_the_user_is_one_line_on_stderr(monkeypatch, capsys):
    error = UsageError("`n_votes` must be at least 1, got [red]; " + "long " * 40)
    assert doctor_that(error, monkeypatch) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: `n_votes` must be at least 1, got [red]; long")
    assert captured.err.count("\n") == 1


def test_other_errors_keep_their_traceback_and_ctrl_c_is_status_130(monkeypatch, capsys):
    with pytest.raises(RuntimeError, match="a defect"):
        doctor_that(RuntimeError("a defect"), monkeypatch)
    assert doctor_that(KeyboardInterrupt(), monkeypatch) == 130
    assert capsys.readouterr().err == "\ninterrupted: nothing was saved\n"


def test_a_full_disk_is_one_line_on_stderr(monkeypatch, capsys):
    def fill(options):
        with open("/dev/full", "w") as full:
            full.write("x")
        return 0

    monkeypatch.setattr(doctor, "run", fill)
    assert cli.main(["doctor"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: ")
    assert "No space left on device. Free space there" in line
    assert line.count("\n") == 1


SWALLOWS = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    raise ImportError("Ctrl-C in the middle of an import, and what NumPy makes of it")
"""


def test_ctrl_c_in_the_first_imports_is_one_line_of_the_command_alone(tmp_path):
    (tmp_path / "difflib.py").write_text(SWALLOWS)
    paths = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"

    def stopped(*args):
        variables = {**os.environ, "PYTHONPATH": paths}
        command = [sys.executable, *args]
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # or children ignore it
        try:
            return subprocess.run(command, capture_output=True, text=True, env=variables)
        finally:
            signal.signal(signal.SIGINT, before)

    for args in (("-m", "flowzoo", "list"), ("-W", "ignore", "-m", "flowzoo.cli")):
        done = stopped(*args)
        assert (done.returncode, done.stderr) == (130, "\ninterrupted: nothing was done\n")
    assert "ImportError: Ctrl-C" in stopped("-c", "import flowzoo").stderr
    (tmp_path / "difflib.py").rename(tmp_path / "pettingzoo.py")
    done = stopped("-m", "flowzoo", "list")
    assert (done.returncode, done.stderr) == (130, "\ninterrupted: nothing was saved\n")
    assert stopped("-m", "flowzoo", "--help").returncode == 0, "help does not import it"


def test_after_the_command_ctrl_c_says_nothing_more():
    before = signal.signal(signal.SIGINT, end_at_once)
    try:
        with StopSignals():
            assert signal.getsignal(signal.SIGINT) is not end_at_once
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("line", "status"), [(["list"], 0), (["eval", "single", "--policy", "scripted:1"], 1)]
)
def test_a_reader_that_goes_away_is_quiet(line, status):
    command = [sys.executable, "-m", "flowzoo.cli", *line]
    reader, writer = os.pipe()
    os.close(reader)  # before the command starts: a late reader would get all of it
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    assert done.returncode == status
    assert b"Error" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_lead_nowhere(closed, tmp_path):
    args = ["eval", "single", "--policy", "scripted:1", "--n", "2", "--out", "saved"]
    line = f'exec "$0" -m flowzoo "$@" {closed}'
    done = subprocess.run(
        ["sh", "-c", line, sys.executable, *args], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr.strip()) == (0, "")
    assert json.loads((tmp_path / "saved" / "summary.json").read_text())["right"] == 2


@pytest.mark.parametrize("args", [["--out", ""], ["--out="], ["--data", ""], [""]])
def test_an_empty_word_is_told_and_writes_nothing(args, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["eval", "voting", "--policy", "scripted:1", "--n", "2", *args]) == 2
    assert "error: an empty argument on the command line after" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_variables_get_defaults_and_set_ones_are_kept(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    for name in ("MKL_NUM_THREADS", "HF_HUB_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "x")  # so that monkeypatch restores it
        monkeypatch.delenv(name)
    cli.set_environment()
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert os.environ["MKL_NUM_THREADS"] == "3"
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"


def test_doctor_rows_have_a_remedy_when_something_is_missing(capsys):
    assert cli.main(["doctor", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    details = {row["name"]: row["detail"] for row in rows}
    assert {"flowzoo", "torch", "transformers", "GPU", "vllm", "docker", "sandbox"} <= set(details)
    for row in rows:
        assert row["ok"] or row["remedy"], row
    usual = "bfloat16" if has_bfloat16("cpu") else "float32"
    figures = r"float32 \d+, bfloat16 \d+, int8 \d+ GFLOP/s per core; .* sample in "
    assert re.match(figures + usual, details["matrix products"])


def test_doctor_says_what_is_missing_and_finds_two_builds_of_vllm(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    row = doctor.optional_row("torch", "train")
    assert (row.ok, row.remedy) == (False, remedy("train"))
    monkeypatch.setattr(doctor, "_version", lambda name: "0.32.0")
    row = doctor.vllm_row()
    assert not row.ok
    assert "both contain the module" in row.detail


def test_list_names_workflows_tasks_and_presets(capsys):
    assert cli.main(["list", "--json"]) == 0
    entries = {
        entry["name"]: entry for entry in map(json.loads, capsys.readouterr().out.splitlines())
    }
    voting = entries["voting_v0"]
    assert voting["roles"] == {"generator": 3, "aggregator": 1}
    assert "math" in voting["tasks"]
    assert {"strict", "paper"} <= set(voting["presets"])
    assert all(entry["summary"] for entry in entries.values())


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_list_shows_every_name_whole(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    long = [f"negotiation_with_{others}" for others in ("buyers", "sellers", "landlords")]
    for name in long:
        monkeypatch.setitem(TASKS, name, TASKS["math"])
    assert cli.main(["list"]) == 0
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= columns
    entries = set(re.split(r"[\s,]+", output))
    assert {*WORKFLOWS, *TASKS, *FORMS, "orchestrator", "dr_mas", "gsm8k", "FOLDER"} <= entries
    assert "…" not in output


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["pocket"], {"generator": "pocket", "aggregator": "pocket"}),
        (["pocket", "aggregator=scripted:1"], {"generator": "pocket", "aggregator": "scripted:1"}),
        (
            ["generator_1=pocket", "openai:m@http://h/v1?a=b"],
            {
                "generator": "openai:m@http://h/v1?a=b",
                "aggregator": "openai:m@http://h/v1?a=b",
                "generator_1": "pocket",
            },
        ),
        (["generator=hf:a=b"], {"generator": "hf:a=b"}),
    ],
)
def test_policies_by_role(args, expected):
    assert PolicyOptions(tuple(args)).by_role(ROLES) == expected


def test_an_option_of_several_values_may_be_given_again():
    words = "eval voting --options n_votes=5 --n 3 --policy pocket --options level=2 --n 4"
    options = line.parse(words.split()).command
    assert options.problems.options == ("n_votes=5", "level=2")
    assert options.n == 4


def test_settings_are_read_as_plain_values():
    args = "n_votes=5 alpha=0.5 aggregate=majority level=1-3 a=TRUE b=none c=a=b"
    values = {"n_votes": 5, "alpha": 0.5, "aggregate": "majority", "level": "1-3"}
    assert read_settings(args.split()) == {**values, "a": True, "b": None, "c": "a=b"}


def test_a_terminal_of_ascii_shows_everything_it_can():
    done = flowzoo_command("list", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr.strip()) == (0, "")
    assert "generator x3" in done.stdout
    assert done.stdout.isascii()


GRADER = """
import time
from flowzoo.envs.tasks.math import MathTask

class Slow(MathTask):
    '''A grader that takes its time.'''

    def grade_batch(self, problems, answers):
        print("grading", flush=True)
        time.sleep(600)
"""


def test_ctrl_c_does_not_wait_for_a_grader(tmp_path):
    (tmp_path / "slow_task.py").write_text(GRADER)
    words = ["eval", "single", "--policy", "scripted:1", "--n", "2", "--task", "slow_task:Slow"]
    command = [sys.executable, "-m", "flowzoo.cli", *words]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "grading\n"
        process.send_signal(signal.SIGTERM)
        _, messages = process.communicate(timeout=120)
    assert process.returncode == 143
    assert messages.splitlines()[-1].startswith("interrupted: nothing was saved")


@pytest.mark.parametrize("out", [(), ("--out", "kept")])
def test_an_evaluation_that_is_interrupted_says_what_is_kept(out, tmp_path, monkeypatch, capsys):
    from flowzoo.agents.scripted import ScriptedPolicy

    requested = 0
    generate = ScriptedPolicy.generate

    async def interrupted(self, requests):
        nonlocal requested
        requested += 1
        if requested > 5:
            raise KeyboardInterrupt
        return await generate(self, requests)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ScriptedPolicy, "generate", interrupted)
    assert cli.main(["eval", "single", "--policy", "scripted:1", "--n", "9", *out]) == 130
    message = capsys.readouterr().err.splitlines()[-1]
    if not out:
        assert (
            message == "interrupted: nothing was saved; with --out every finished episode is saved"
        )
        return
    saved = len((tmp_path / "kept" / "episodes.jsonl").read_text().splitlines())
    assert message == (
        f"interrupted: {saved} of 9 episodes are saved in kept; the same command resumes"
    )
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert cli.main(["eval", "single", "--policy", "scripted:1", "--n", "9", *out]) == 0


def test_what_a_stopped_run_has_saved(tmp_path):
    from flowzoo.commands.train import kept_of_run

    assert "before the first checkpoint" in kept_of_run(tmp_path, 0, 40)
    for step in (0, 10):
        (tmp_path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    text = kept_of_run(tmp_path, 13, 40)
    assert text.startswith("step 13 of 40 was done;")
    assert "of step 10, from which the same command resumes" in text


def test_a_dead_endpoint_is_told_of_at_once(caplog):
    import asyncio

    from flowzoo.agents import Request
    from flowzoo.agents.openai.endpoint import Endpoint
    from flowzoo.agents.openai.policy import EndpointError, OpenAIPolicy

    policy = OpenAIPolicy("m", Endpoint("http://127.0.0.1:9/v1", retries=1))
    message = {"role": "user", "content": "x"}
    request = Request(("a",), "writer_0", "writer", [message], "p")
    with pytest.raises(EndpointError, match="after 2 attempts"):
        asyncio.run(policy.generate([request, request]))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1
    assert "trying again (1 of 1)" in messages[0]


# -- `flowzoo eval`, `play` and `train` as a user types them, on math and on programs --------------


GSM8K = Path("../shared/data/gsm8k/test.jsonl")
HUMANEVAL = Path("../shared/data/humaneval/HumanEval.jsonl")
PUBLISHED = [
    ("single", "code", HUMANEVAL, 164),
    *((name, "math", GSM8K, 1319) for name in ("voting", "eval_opt", "orch_workers", "single")),
]
"""Workflow, task, file of problems and their number; the first is among the usual cases."""


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


@pytest.mark.usual(2)
@pytest.mark.parametrize("right", [1, 0])
@pytest.mark.parametrize(("workflow", "task", "data", "problems"), PUBLISHED)
def test_eval_on_all_published_problems(workflow, task, data, problems, right, capsys):
    if not data.exists():
        pytest.skip(f"{data} is not here")
    args = ["eval", workflow, "--task", task, "--data", str(data), "--policy", f"scripted:{right}"]
    assert main(args) == 0
    accuracy = f"accuracy {100 * right}.0 % ({problems * right}/{problems}), 95 % interval "
    assert last_line(capsys).startswith(accuracy)


def test_eval_prints_rates_per_role_and_saves(tmp_path, capsys):
    args = ["eval", "voting", "--policy", "generator=scripted:0.5", "aggregator=scripted:1",
             "--n", "40", "--out", str(tmp_path)]  # fmt: skip
    assert main(args) == 0
    first = capsys.readouterr().out
    assert "generator" in first
    assert "strict" in first
    assert first.splitlines()[-1].startswith("accuracy ")
    assert len((tmp_path / "episodes.jsonl").read_text().splitlines()) == 40
    assert main(args) == 0
    assert capsys.readouterr().out == first


def test_eval_json_is_one_object_before_the_last_line(capsys):
    args = ["eval", "single", "--policy", "scripted:0.5", "--n", "20", "--samples", "3", "--json"]
    assert main(args) == 0
    *_, summary, line = capsys.readouterr().out.splitlines()
    assert json.loads(summary)["episodes"] == 60
    assert "/60), 95 % interval " in line


@pytest.mark.parametrize("workflow", ["voting", "eval_opt", "orch_workers", "single"])
def test_play_shows_every_agent_and_the_verdict(workflow, capsys):
    assert main(["play", workflow, "--policy", "scripted:1.0", "--chats"]) == 0
    output = capsys.readouterr().out
    assert "Put the final answer in" in output
    assert "score 1" in output
    assert main(["play", workflow, "--policy", "scripted:1.0", "--json", "--n", "2"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["score"] for record in records] == [1.0, 1.0]


def test_play_keeps_the_token_budgets_of_roles(capsys):
    args = ["play", "voting", "--temperature", "0", "--lengths", "generator=/2"]
    assert main([*args, "--json"]) == 0
    (record,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    replies = [call["reply"] for call in record["calls"] if call["role"] == "generator"]
    assert all(len(reply) < 12 for reply in replies)
    assert main(args) == 0
    shown = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()]
    assert [line for line in shown if line in replies] == replies


def test_a_broken_data_file_is_named_with_its_line(tmp_path, capsys):
    path = tmp_path / "broken.jsonl"
    path.write_text('{"question": "1+1?", "answer": "#### 2"}\n{"question": \n')
    assert main(["eval", "voting", "--data", str(path), "--policy", "scripted:1"]) == 2
    assert "broken.jsonl, line 2" in capsys.readouterr().err


def test_train_says_where_everything_is(tmp_path, capsys):
    args = ["train", "eval_opt", "--steps", "1", "--problems", "2", "--samples", "2",
             "--eval-problems", "4", "--out", str(tmp_path)]  # fmt: skip
    assert main(args) == 0
    output = capsys.readouterr().out
    for name in ("metrics.jsonl", "transcripts", "checkpoints"):
        assert str(tmp_path / name) in output
        assert (tmp_path / name).exists()
    assert "held-out accuracy" in output
    *_, report, best = output.splitlines()
    command = shlex.split(report.removeprefix("report"))
    assert command == ["flowzoo", "report", str(tmp_path)]
    assert best.startswith("best  ")
    assert main(command[1:]) == 0
    assert (tmp_path / "report.html").stat().st_size > 0


def test_the_sandbox_is_an_option(capsys):
    args = ["eval", "eval_opt", "--task", "code", "--policy", "scripted:1", "--n", "3"]
    assert main([*args, "--sandbox", "unsafe", "--options", "tools=tests"]) == 0
    assert last_line(capsys).startswith("accuracy 100.0 % (3/3), 95 % interval ")
    assert main([*args, "--sandbox", "unsafe", "--options", "sandbox=auto"]) == 2
    assert "--sandbox and --options give 'sandbox' twice" in capsys.readouterr().err
    assert main(["eval", "single", "--policy", "scripted:1", "--sandbox", "docker"]) == 2
    assert "single_v0 on task 'math' runs no programs" in capsys.readouterr().err


def test_play_shows_a_program(capsys):
    args = ["play", "voting", "--task", "code", "--policy", "scripted:1"]
    assert main(args) == 0
    assert "def f(x):" in capsys.readouterr().out


def asserting(folder: Path, text: str, tests: list[str]) -> list[str]:
    """`flowzoo eval` on a problem that can be judged and on one with these tests."""
    good = {"text": "One.", "code": "def f():\n    return 1", "test_list": ["assert f() == 1"]}
    path = folder / "m.json"
    path.write_text(json.dumps([good, {**good, "text": text, "test_list": tests}]))
    return ["eval", "single", "--task", "code", "--policy", "scripted:1.0", "--data", str(path)]


def test_rows_of_no_use_are_left_out_if_asked_and_counted(tmp_path, capsys):
    args = asserting(tmp_path, "Nothing.", [])
    assert main(args) == 2
    assert "line 2: column 'test_list' is not a list of asserts" in capsys.readouterr().err
    assert main([*args, "--skip-unusable", "--out", str(tmp_path / "out")]) == 0
    output = capsys.readouterr().out
    assert "unusable rows, left out: 1" in output
    assert output.splitlines()[-1].startswith("accuracy 100.0 % (1/1), 95 % interval ")
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["unusable"] == 1


def test_what_the_sandbox_cannot_judge_is_named_and_not_counted(tmp_path, capsys):
    args = asserting(tmp_path, "Never.", ["import os; os._exit(0); f()"])
    assert main([*args, "--out", str(tmp_path / "out")]) == 0
    output = capsys.readouterr().out
    assert "unknown, not counted: 1 episode (the test's own code failed" in output
    assert output.splitlines()[-1].startswith("accuracy 100.0 % (1/1), 1 unknown, 95 % interval ")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert list(summary["unknown"]) == ["code/all/0/m.json:1#0"]


# -- The warning of `flowzoo train` where a pocket model meets problems it was not made for --------


@pytest.mark.parametrize(
    ("workflow", "task", "options", "model", "message"),
    [
        ("search_team", "search", {}, "pocket", "--task search --options level=1 top_k=1;"),
        ("tool_planner", "plan_path", {"side": 4}, "pocket", "side=4 max_turns=2"),
        ("writing_pair", "writing", {}, "pocket:math", "--task math --options level=1"),
        ("voting", "math", {"level": 3}, "pocket", "was trained for --task math --options level=1"),
        (
            "voting",
            "math",
            {"level": 3},
            "pocket:s",
            "was trained for --task math --options level=1",
        ),
        ("voting", "math", {}, "pocket:code-xs", "the pocket model of code was trained for"),
        ("reasoner_tool", "math", {}, "pocket:math_teams", "--task math --options level=1 max_tu"),
        # Its own problems, and other models.
        ("reasoner_tool", "math", {"max_turns": 2}, "pocket:math_teams", ""),
        ("writing_pair", "writing", {"form": "expansion"}, "pocket", ""),
        ("search_team", "search", {"level": 1, "top_k": 1}, "pocket", ""),
        ("tool_planner", "plan_path", {"side": 4, "max_turns": 2}, "pocket", ""),
        ("voting", "math", {}, "pocket", ""),
        ("voting", "math", {}, "pocket:s", ""),
        ("voting", "math", {"level": 3}, "some/model", ""),
    ],
)
def test_other_problems_are_told(workflow, task, options, model, message):
    note = pocket_note(make_workflow(workflow, task, **options), model)
    assert message in note
    assert bool(note) == bool(message)


# -- `flowzoo prompts`: a file that `--prompts` takes, and the chats of roles ----------------------


@pytest.mark.parametrize("name", WORKFLOWS)
@pytest.mark.parametrize("texts", ["short", "full"])
def test_the_file_it_prints_is_what_the_workflow_has(name, texts, capsys, tmp_path):
    assert main(["prompts", name, "--prompts", texts]) == 0
    printed = capsys.readouterr().out
    workflow = make_workflow(name, texts=texts)
    assert tomllib.loads(printed)["prompts"] == dict(workflow.prompts)
    file = tmp_path / "prompts.toml"
    file.write_text(printed, encoding="utf-8")
    again = make_workflow(name, texts=str(file))
    assert again.prompts == workflow.prompts
    assert again.task.instruction == workflow.task.instruction


def test_chats_show_system_messages_and_examples(capsys):
    args = ["--system", "aggregator=Judge [well].", "--examples", "1", "--chats"]
    assert main(["prompts", "voting", *args]) == 0
    printed = capsys.readouterr().out
    assert "Judge [well]." in printed
    assert printed.count("assistant") == 2
    assert printed.index("generator") < printed.index("aggregator")


def test_eval_and_play_take_them(capsys):
    args = ["--policy", "scripted:1", "--system", "generator=Be brief.", "--examples", "1"]
    assert main(["eval", "voting", *args, "--n", "3"]) == 0
    assert "accuracy 100.0 %" in capsys.readouterr().out
    assert main(["play", "voting", *args, "--chats"]) == 0
    assert "Be brief." in capsys.readouterr().out
    assert main(["eval", "voting", *args, "--options", "examples=2"]) == 2
    assert "--examples and --options" in capsys.readouterr().err


# -- The command that `flowzoo sft` prints at its end is a whole one -------------------------------


PLACE = "runs/a b's; rm"
ISOLATED = {"generator": "generator", "aggregator": "aggregator"}


def next_settings(settings: SftConfig, models: dict[str, str], roles: dict[str, str]) -> Any:
    """The settings of the printed command, read as a shell and our parser read it."""
    args = train_words(settings, {"models": models, "policies": roles})
    line = " ".join(map(shlex.quote, args))
    return parse(tuple(shlex.split(line))).command.settings


@pytest.mark.parametrize(
    "changes",
    [
        {"workflow": "single", "task": "units", "model": "pocket:math"},
        {"workflow": "single", "options": ("level=1", "data=my file's.jsonl"), "seed": 7},
        {"lora_rank": 16, "lora_alpha": 8, "lora_targets": "all", "thinking": ("off",)},
        {"gradient_checkpointing": True, "compute": "bfloat16", "weights": "bfloat16"},
        {"task": "code", "sandbox": "docker", "lengths": ("generator=40/20",), "max_tokens": 64},
        {"device": "cpu", "threads": 2, "eval_problems": 300, "eval_temperature": 0.7},
        {"workflow": "my_package.flows:Debate", "microbatch_tokens": 512, "layout": "padded"},
    ],
)
def test_what_matters_is_carried_on(changes):
    settings = SftConfig(**changes)
    results = next_settings(settings, {"shared": PLACE}, dict.fromkeys(ISOLATED, "shared"))
    assert (results.workflow, results.model, results.models) == (settings.workflow, PLACE, ())
    assert {name: getattr(results, name) for name in CARRIED} == {
        name: getattr(settings, name) for name in CARRIED
    }


def test_policies_of_their_own_and_frozen_ones_go_on_too():
    settings = SftConfig(sharing=("isolated",))
    results = next_settings(settings, {"generator": "a", "aggregator": "b"}, ISOLATED)
    assert (results.model, results.sharing) == ("pocket", ("isolated",))
    assert results.models == ("generator=a", "aggregator=b")
    settings = SftConfig(
        sharing=("isolated",), frozen=("aggregator",), model="base", models=("aggregator=judge",)
    )
    results = next_settings(settings, {"generator": PLACE}, ISOLATED)
    assert (results.model, results.frozen) == ("base", ("aggregator",))
    assert results.models == ("aggregator=judge", f"generator={PLACE}")


def test_every_shared_setting_is_carried_or_left_out_on_purpose():
    shared = {item.name for item in fields(TrainConfig)} & {item.name for item in fields(SftConfig)}
    local = {
        "workflow", "model", "models",  # said first
        "out", "samples", "lr", "min_lr", "schedule", "weight_decay", "clip_norm", "stop_patience",
        "checkpoint_every", "keep_last",
    }  # fmt: skip
    assert shared - local == set(CARRIED)


# -- The command line with vLLM, in processes of its own -------------------------------------------


ROOT = Path(__file__).parents[2]


def run(*args: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *args], env=environment, cwd=ROOT, capture_output=True, text=True,
        timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "leaked" not in done.stderr
    return done.stdout


@pytest.mark.vllm
@pytest.mark.full
def test_eval_with_vllm(capsys):
    args = ["eval", "voting", "--n=8", "--engine=vllm", "--max-tokens=40"]
    assert main([*args, "--engine-memory=0.1"]) == 0
    *_, protocol, last = capsys.readouterr().out.splitlines()
    assert last.startswith("accuracy ")
    assert ", float32, " in protocol
    assert main([*args, "--engine-dtype=bfloat16"]) == 0
    assert ", bfloat16, " in capsys.readouterr().out


@pytest.mark.vllm
@pytest.mark.full
def test_a_process_that_trains_with_vllm_ends_with_status_0(tmp_path):
    args = ("--steps=1", "--problems=2", "--samples=2", "--eval-problems=4", "--engine=vllm")
    args = (*args, "--max-tokens=40", f"--out={tmp_path / 'run'}")
    assert "held-out accuracy" in run("-m", "flowzoo.cli", "train", "voting", *args)
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["sync/gap_max/shared"] < 1e-3


def test_doctor_names_the_engines_that_can_run_here():
    results = doctor.engines()
    (row,) = [row for row in doctor.examine() if row.name == "engines"]
    assert all(name in row.detail for name in results)
    assert ("vllm" in results) == (find_spec("vllm") is not None and find_spec("torch") is not None)
