"""Code that a file names: not loaded, unless the command line names it or says --trust."""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from flowzoo.agents.openai.endpoint import check_receiver, read_endpoints
from flowzoo.agents.vllm.remote import ServerBackend
from flowzoo.baselines.matrix import controls
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.preflight import with_prompts
from flowzoo.baselines.settings.sft import SftConfig
from flowzoo.cli import main
from flowzoo.envs.external.program import OpenAIProgram
from flowzoo.errors import UsageError
from flowzoo.permission import PERMISSION

MARK = "open('loaded', 'a').write(__file__)\n"
CODE = {
    "team": "from flowzoo.envs.workflows.single import Single\nclass Team(Single):\n    pass\n",
    "sums": "from flowzoo.envs.tasks.math import MathTask\nclass Sums(MathTask):\n    pass\n",
    "sampler": (
        "from flowzoo.agents.engines import Transformers\nclass Sampler(Transformers):\n    pass\n"
    ),
    "rules": "def rule(*given):\n    return 0.5\n",
}
COMMAND = "sh -c 'echo > loaded'"
KINDS = {
    "x/team.py:Team": {"workflow": "x/team.py:Team"},
    "team:Team": {"workflow": "team:Team"},
    "x/sums.py:Sums": {"task": "x/sums.py:Sums"},
    "x/sampler.py:Sampler": {"engine": "x/sampler.py:Sampler"},
    "x/rules.py:rule": {"reward": "x/rules.py:rule"},
    "rules:rule": {"callback": ["rules:rule"]},
    "./x/rules.py:rule": {"loss": "./x/rules.py:rule"},
    "x/../rules.py:rule": {"advantage_function": "x/../rules.py:rule"},
    "a=b.py:rule": {"algorithm": "reinforce", "options": ["credit=a=b.py:rule"]},
    "judged.py:rule": {"reward": "judge:rubric.toml"},
    "x/env.py:make": {"workflow": "", "env": "x/env.py:make", "model": "pocket:math"},
    "flowzoo.files:read_json": {
        "workflow": "", "env": "flowzoo.files:read_json", "model": "pocket:math",
    },
    "program:rule": {"workflow": "", "program": "program:rule"},
    COMMAND: {"workflow": "", "program": COMMAND, "options": ["roles=generator"]},
    "unsafe": {"sandbox": "unsafe"},
}  # fmt: skip
"""Settings by the code that they name."""
SMALL = {"steps": 1, "problems": 2, "samples": 2, "eval_problems": 4}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with code that leaves a file `loaded` when it is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLOWZOO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which commands add the directory
    for name in (*CODE, "program"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "x").mkdir()
    for name, code in CODE.items():
        for place in (tmp_path, tmp_path / "x"):
            (place / f"{name}.py").write_text(MARK + code)
    for name in ("a=b", "judged", "program", "x/env"):
        (tmp_path / f"{name}.py").write_text(f"{MARK}{CODE['rules']}make = rule")
    (tmp_path / "rubric.toml").write_text('[[criterion]]\nname = "a"\nfunction = "judged.py:rule"')
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    out = tmp_path_factory.mktemp("run") / "run"
    line = ["train", "single", "--out", str(out)]
    for name, value in SMALL.items():
        line += [f"--{name}", str(value)]
    assert main(line) == 0
    return out


def toml(table: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in table.items())


def record(run: Path, settings: Mapping[str, Any]) -> None:
    """Change settings in the record of a run."""
    data = json.loads((run / "run.json").read_text())
    data["settings"] |= settings
    (run / "run.json").write_text(json.dumps(data))


def assert_refused(line: list[str], name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The message of a refused command, which has loaded nothing."""
    assert main(line) == 2
    error = capsys.readouterr().err
    assert not Path("loaded").exists(), error
    assert error.endswith("repeat the command with --trust\n")
    assert f" {name}" in error
    return error


@pytest.mark.parametrize("name", KINDS)
def test_a_record_and_a_settings_file_load_no_code(name, folder, finished, capsys):
    run = shutil.copytree(finished, folder / "run")
    record(run, KINDS[name])
    said = assert_refused(["swap", "run"], name, capsys)
    assert "run/run.json" in said or "rubric.toml" in said
    Path("own.toml").write_text(toml({"workflow": "single", **SMALL, **KINDS[name]}))
    assert_refused(["train", "--config", "own.toml", "--out", "o"], name, capsys)


@pytest.mark.parametrize("name", [name for name in KINDS if name != "judged.py:rule"])
def test_a_matrix_loads_no_code_before_its_runs_start(name, folder, capsys):
    settings = {"workflow": "single", "task": "math", **SMALL, **KINDS[name]}
    axes = {
        axis: [settings.pop(axis)] for axis in ("workflow", "task") if "env" not in settings
    } or {"workflow": [settings.pop("workflow")], "model": ["pocket:math"]}
    settings.pop("task", None)
    Path("m.toml").write_text(f"[settings]\n{toml(settings)}[[cells]]\n{toml(axes)}")
    assert_refused(["matrix", "m.toml", "--dry-run"], name, capsys)
    assert_refused(["matrix", "m.toml"], name, capsys)
    if name != "x/sampler.py:Sampler":  # settings are made with their engine
        assert main(["matrix", "m.toml", "--table"]) == 0
        assert not Path("loaded").exists()


LEADERBOARDS = {
    "x/team.py:Team": ("", {"workflow": ["x/team.py:Team"]}),
    "team:Team": ("", {"workflow": ["team:Team"]}),
    "x/sums.py:Sums": ("", {"task": ["x/sums.py:Sums"]}),
    "sampler:Sampler": ('engine = "sampler:Sampler"', {}),
    "rules:rule": ('options = ["credit=rules:rule"]', {}),
    COMMAND: (f'options = ["run={COMMAND}", "roles=a"]', {"workflow": ["openai_program"]}),
    # The underscore becomes a dash, and `--n=2` is no workflow.
    "x/e-nv.py:make": ('"env=x/e_nv.py:make" = true', {"workflow": ["--n=2"]}),
}


@pytest.mark.parametrize("name", LEADERBOARDS)
def test_a_leaderboard_loads_no_code(name, folder, capsys):
    settings, axes = LEADERBOARDS[name]
    shutil.copy("x/env.py", "x/e-nv.py")
    cells = {"workflow": ["single"], "policy": ["scripted:0.5"], **axes}
    Path("b.toml").write_text(f"[settings]\nn = 2\n{settings}\n[[cells]]\n{toml(cells)}")
    assert_refused(["leaderboard", "b.toml", "--dry-run"], name, capsys)
    assert_refused(["leaderboard", "b.toml"], name, capsys)


@pytest.mark.parametrize("place", ["flowzoo.py", "flowzoo.d/team.py"])
def test_a_file_of_the_name_of_flowzoo_is_a_file(place, folder, capsys):
    Path("flowzoo.d").mkdir()
    shutil.copy("x/team.py", place)
    Path("s.toml").write_text(toml({"workflow": f"{place}:Team", "steps": 1}))
    assert_refused(["train", "--config", "s.toml"], f"{place}:Team", capsys)


def test_a_settings_file_is_no_program_because_the_line_names_it(folder, capsys):
    program = Path("p.toml")
    program.write_text(
        "#!/usr/bin/env -S touch loaded\n" + toml({"program": "./p.toml", "model": "pocket:math"})
    )
    program.chmod(0o755)
    assert_refused(["train", "--config", "./p.toml", "--steps", "1"], "./p.toml", capsys)


def test_a_folder_of_the_name_of_a_value_does_not_give_it(tmp_path):
    with PERMISSION.of(["swap", "unsafe"]), pytest.raises(UsageError, match="sandbox to unsafe"):
        PERMISSION.check_value("sandbox", "unsafe", "programs run")
    for line in (["play", "--sandbox", "unsafe"], ["play", "--options", "sandbox=unsafe"]):
        with PERMISSION.of(line):
            PERMISSION.check_value("sandbox", "unsafe", "programs run")


def test_a_key_goes_to_no_address_that_only_a_file_names(folder, capsys, monkeypatch):
    place = "http://192.0.2.1:9/v1"
    cells = {"workflow": ["single"], "policy": [f"openai:m@{place}"]}
    Path("b.toml").write_text(f"[settings]\nn = 1\n[[cells]]\n{toml(cells)}")
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-this-user")
    assert main(["leaderboard", "b.toml"]) != 0
    error = capsys.readouterr().err
    assert f"b.toml sets an endpoint to {place}, and the command line does not" in error
    assert f"{place} would be sent the key in OPENAI_API_KEY" in error
    Path("e.toml").write_text(f'[fast]\nurl = "{place}"\napi_key_env = "MY_TOKEN"\n')
    monkeypatch.setenv("MY_TOKEN", "another-key-of-this-user")
    cells = {"workflow": ["single"], "policy": ["openai:m@fast"]}
    Path("b.toml").write_text(f'[settings]\nn = 1\nendpoints = "e.toml"\n[[cells]]\n{toml(cells)}')
    assert main(["leaderboard", "b.toml"]) != 0
    assert f"{place} would be sent the key in MY_TOKEN" in capsys.readouterr().err
    with PERMISSION.of(["eval", "single", "--endpoints", "./e.toml"]):
        assert list(read_endpoints(Path("e.toml"))) == ["fast"]
    with PERMISSION.of(["eval", "single", "--policy", f"vllm:m@{place}"]):
        check_receiver(place)
    with PERMISSION.of([]):
        with pytest.raises(UsageError, match="would be sent the key"):
            ServerBackend(place)
        check_receiver("http://127.0.0.1:9/v1")
        monkeypatch.delenv("OPENAI_API_KEY")
        check_receiver(place)  # there is no key to be sent


def test_the_refusal_lists_all_code_with_its_file_and_digest(folder, capsys):
    settings = toml({"reward": "judge:rubric.toml", "loss": "rules:rule"})
    cells = ['[[cells]]\nworkflow = ["single"]', '[[cells]]\nworkflow = ["x/team.py:Team"]']
    Path("m.toml").write_text("\n".join(["[settings]", settings, *cells]))
    error = assert_refused(["matrix", "m.toml"], "x/team.py:Team", capsys)
    for name, file in {
        "x/team.py:Team": "x/team.py", "judged.py:rule": "judged.py",
        "rules:rule": str(folder / "rules.py"),
    }.items():  # fmt: skip
        digest = sha256(Path(file).read_bytes()).hexdigest()
        assert f"{name} ({file}, SHA-256 {digest[:12]})" in error


def test_code_that_the_command_line_names_or_trusts_is_loaded_and_never_asked_for_again(
    folder, finished, capsys
):
    Path("own.toml").write_text(toml({"workflow": "single", **SMALL, "reward": "rules:rule"}))
    given = ["train", "--config", "own.toml", "--out", "o"]
    assert_refused(given, "rules:rule", capsys)
    assert main([*given, "--reward", "rules:rule"]) == 0
    assert Path("loaded").exists()
    for line in (given, ["swap", "o"], ["report", "o"]):
        assert main(line) == 0
    run = shutil.copytree(finished, folder / "run")
    record(run, {"workflow": "x/team.py:Team"})
    Path("loaded").unlink()
    assert_refused(["swap", "run"], "x/team.py:Team", capsys)
    assert main(["swap", "run", "--trust"]) == 0
    assert "there is nothing to exchange" in capsys.readouterr().out
    assert main(["swap", "run"]) == 0


CHANGES = {
    "another file": ("x/rules.py:rule", CODE["rules"]),
    "another place": ("y/rules.py:rule", MARK + CODE["rules"]),
    "another function of it": ("rules:other", MARK + CODE["rules"] + "other = rule\n"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_known_code_is_unknown_once_it_is(change, folder, capsys):
    name, code = CHANGES[change]
    Path("rules.py").write_text(MARK + CODE["rules"] + "other = rule\n")
    settings = {"workflow": "single", **SMALL}
    for reward in ("x/rules.py:rule", "rules:rule"):
        Path("own.toml").write_text(toml({**settings, "reward": reward}))
        assert main(["train", "--config", "own.toml", "--out", reward[:3], "--trust"]) == 0
    Path("loaded").unlink()
    path = Path(name.partition(":")[0].removesuffix(".py") + ".py")
    path.parent.mkdir(exist_ok=True)
    path.write_text(code)
    Path("own.toml").write_text(toml({**settings, "reward": name}))
    assert_refused(["train", "--config", "own.toml", "--out", "n"], name, capsys)


def test_a_run_of_ones_own_without_confinement_is_not_asked_for(folder, capsys):
    words = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
    words += ["--task", "code", "--model", "pocket:math"]
    assert main(["train", "single", "--sandbox", "unsafe", "--out", "own", *words]) == 0
    for place in ("run", "other"):
        shutil.copytree("own", place)
    assert main(["swap", "own"]) == 0
    assert_refused(["swap", "run"], "unsafe", capsys)
    assert main(["swap", "run", "--trust"]) == 0
    assert main(["swap", "run"]) == 0
    assert_refused(["swap", "other"], "unsafe", capsys)


READERS = (
    "swap run", "why run", "report run", "report run --against run", "export run --out model",
    "play single --policy run", "eval single --policy run --n 2", "dataset run --out rows.jsonl",
    "filter single --policy run --n 2 --out rates.jsonl", "serve single --policy run --port -1",
    "train single --out run", "sft single --out s --demos run",
)  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_no_command_that_reads_a_run_loads_code_of_its_record(reader, folder, finished, capsys):
    named = [value for value in KINDS.values() if {"env", "program"}.isdisjoint(value)]
    whole = {name: value for settings in named for name, value in settings.items()}
    parts = {"x/env.py:make", COMMAND, "unsafe"}
    for number, settings in enumerate([whole, *(KINDS[name] for name in parts)]):
        shutil.copytree(finished, folder / "run", dirs_exist_ok=True)
        record(folder / "run", settings)
        main([word.replace("model", f"model-{number}") for word in reader.split()])
        assert not Path("loaded").exists(), (settings, capsys.readouterr())


def test_classes_of_flowzoo_need_no_trust(folder, capsys):
    cells = {"workflow": ["flowzoo.envs.workflows.single:Single"], "policy": ["scripted:1"]}
    Path("b.toml").write_text(f"[settings]\nn = 2\n[[cells]]\n{toml(cells)}")
    assert main(["leaderboard", "b.toml"]) == 0


def test_runs_of_a_trusted_matrix_are_trusted_and_of_another_are_not(folder, capsys):
    matrix = 'seeds = [0]\n[settings]\n{settings}[[cells]]\nworkflow = ["{workflow}"]\n'
    Path("m.toml").write_text(matrix.format(settings=toml(SMALL), workflow="x/team.py:Team"))
    assert main(["matrix", "m.toml", "--jobs", "1", "--trust"]) == 0
    rubric = toml({**SMALL, "reward": "judge:rubric.toml"})
    Path("loaded").unlink()
    Path("r.toml").write_text(matrix.format(settings=rubric, workflow="single"))
    assert main(["matrix", "r.toml", "--jobs", "1"]) == 1
    assert not Path("loaded").exists()
    (log,) = Path("runs/r").rglob("log.txt")
    assert "with --trust" in log.read_text()


def test_the_votes_of_a_control_load_no_code_of_its_record(folder, finished, monkeypatch):
    run = shutil.copytree(finished, folder / "run")
    like = shutil.copytree(finished, folder / "like")
    record(run, {"callback": ["rules:rule"]})
    monkeypatch.setattr("sys.argv", ["controls", f"--run={run}", f"--like={like}"])
    with pytest.raises(SystemExit, match="repeat the command with --trust"):
        controls.main()
    assert not Path("loaded").exists()


def test_modules_and_packages_of_the_working_directory_are_not_found_by_themselves(
    folder, finished
):
    run = shutil.copytree(finished, folder / "run")
    record(run, {"workflow": "team_v0"})
    (folder / "team-1.dist-info").mkdir()
    (folder / "team-1.dist-info" / "METADATA").write_text("Name: team\nVersion: 1\n")
    points = "[flowzoo.workflows]\nteam_v0 = team:Team\n"
    (folder / "team-1.dist-info" / "entry_points.txt").write_text(points)
    (folder / "opt_einsum.py").write_text(MARK)  # which torch imports if it finds it
    # As the installed command, which does not look for modules in the working directory.
    command = [sys.executable, "-P", "-m", "flowzoo"]
    done = subprocess.run([*command, "swap", "run"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "unknown workflow 'team_v0'" in done.stderr
    assert not Path("loaded").exists()
    line = ["eval", "team:Team", "--policy", "scripted:1", "--n", "2"]
    assert subprocess.run([*command, *line], capture_output=True).returncode == 0
    assert Path("loaded").exists()


# -- `--program` in place of a workflow: eval, filter, play, settings of runs ----------------------


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
