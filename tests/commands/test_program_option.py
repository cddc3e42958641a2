"""`--program` in place of a workflow: eval, filter, play, settings of runs."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.preflight import with_prompts
from flowzoo.baselines.settings.sft import SftConfig
from flowzoo.cli import main
from flowzoo.envs.external.program import OpenAIProgram
from flowzoo.errors import UsageError

AGENT = """
import json, os, sys, urllib.request
ROLES = {"writer": 1, "reviewer": 1}
def ask(base_url, key, model, text):
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}]})
    headers = {"Authorization": "Bearer " + key}
    request = urllib.request.Request(base_url + "/chat/completions", body.encode(), headers)
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]
def solve(problem, base_url, api_key):
    draft = ask(base_url, api_key, "writer", problem)
    return ask(base_url, api_key, "reviewer", problem + draft)
if __name__ == "__main__":
    print(solve(sys.stdin.read(), os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]))
"""


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    file = tmp_path / "agent.py"
    file.write_text(AGENT, encoding="utf-8")
    return file


def test_a_function_and_a_command_are_evaluated_alike(agent, tmp_path, capsys):
    command = shlex.join([sys.executable, str(agent)])
    roles = "roles=writer:1,reviewer"
    programs = {f"{agent}:solve": ["at_once=1"], command: ["at_once=1", roles]}
    lines, records = [], []
    for number, (program, options) in enumerate(programs.items()):
        out = tmp_path / str(number)
        line = ["eval", "--program", program, "--policy", "scripted:0.5", "--n", "6"]
        for _ in range(2):  # the second finds every episode there
            assert main([*line, "--options", *options, "--out", str(out)]) == 0
            lines.append(capsys.readouterr().out.splitlines()[-1])
        rows = (out / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
        records.append(sorted(str(json.loads(row)["calls"][1]["messages"]) for row in rows))
        settings = json.loads((out / "run.json").read_text(encoding="utf-8"))["settings"]
        assert settings["problems"]["program"] == program
        assert len(settings["functions"]) == 1 + number  # of the command: Python and the file
    assert len(set(lines)) == 1
    assert records[0] == records[1]
    agent.write_text(AGENT + "# changed\n", encoding="utf-8")
    assert main([*line, "--options", *options, "--out", str(out)]) == 2
    assert "other settings (functions)" in capsys.readouterr().err


def test_other_commands_take_it_too(agent, capsys):
    program = ["--program", f"{agent}:solve", "--options", "at_once=1"]
    assert main(["play", *program, "--policy", "scripted:1"]) == 0
    assert "reviewer_0" in capsys.readouterr().out
    out = agent.with_name("rates.jsonl")
    line = ["filter", *program, "--policy", "scripted:1", "--n", "2", "--samples", "2"]
    assert main([*line, "--out", str(out)]) == 0
    assert "pass rates of 2 problems" in capsys.readouterr().out
    assert main(["prompts", *program, "--chats"]) == 0
    assert "reviewer" in capsys.readouterr().out


@pytest.mark.parametrize("config", [TrainConfig, SftConfig])
def test_settings_of_a_run_name_it(config, agent):
    named = {"program": f"{agent}:solve", "options": ("at_once=1",)}
    settings = config(**named, **({"source": ("x",)} if config is SftConfig else {}))
    assert settings.workflow == "openai_program_v0"
    assert "agent.py-solve-math" in settings.directory.name
    run = settings if config is TrainConfig else settings.run_settings()
    workflow = with_prompts(run)[0]
    assert isinstance(workflow, OpenAIProgram)
    assert (workflow.at_once, list(workflow.agents)) == (1, ["writer_0", "reviewer_0"])
    with pytest.raises(UsageError, match="leave out 'single'"):
        config(workflow="single", **named, source=("x",)) if config is SftConfig else config(
            workflow="single", **named
        )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("eval voting --program x:y", "name either a workflow"),
        ("eval --env a:b --program x:y", "name either a workflow"),
        ("filter --out rates.jsonl", "name either a workflow, e.g. voting, or --program"),
        ("eval --program 'no-such-command --fast'", "command 'no-such-command' does not exist"),
        ("train --program no_such_module:solve", "importing no_such_module raised"),
        ("train --program json:dumps", "name the roles of the program"),
        ("train --program json:dumps --options run=x roles=a", "give 'run' twice"),
        (
            "train --algorithm at_grpo --program json:dumps --options roles=a repeatable=false",
            "declared as not repeatable",
        ),
    ],
)
def test_mistakes(line, message, capsys):
    assert main(shlex.split(line)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.full
def test_two_steps_of_training_with_a_policy_for_each_role(agent, tmp_path, capsys):
    out = tmp_path / "run"
    line = f"train --program {agent}:solve --sharing isolated --steps 2 --problems 2 --samples 2"
    line += f" --eval-problems 4 --max-tokens 8 --options at_once=1 level=1 --out {out}"
    assert main(shlex.split(line)) == 0
    assert "policies: writer -> writer, reviewer -> reviewer" in capsys.readouterr().out
    assert main(["report", str(out)]) == 0


def test_the_example_has_a_role_named_judge(tmp_path, capsys):
    example = Path(__file__).parents[2] / "examples" / "openai_program.py"
    line = ["eval", "--program", f"{example}:solve", "--policy", "pocket", "--n", "4"]
    assert main([*line, "--out", str(tmp_path)]) == 0
    assert "per episode: 3.00 calls" in capsys.readouterr().out
    protocol = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))["protocol"]
    assert set(protocol["policies"]) == {"solver", "judge"}
