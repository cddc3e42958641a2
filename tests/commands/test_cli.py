import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from functools import cache

import pytest
from processes import run_python

import flowzoo
from flowzoo import cli
from flowzoo.agents.specs import FORMS
from flowzoo.agents.traits import has_bfloat16
from flowzoo.commands import doctor, line
from flowzoo.commands.policies import PolicyOptions
from flowzoo.commands.progress.stopping import StopSignals
from flowzoo.commands.shared import program_name
from flowzoo.envs.api.registry import WORKFLOWS
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
