"""Every wrong command line is one line on stderr, ends with status 2, and loses nothing.

In a line, {run} is the directory of a training run, {eval} that of an evaluation of 4 problems,
{file} a file, {void} a folder without anything.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("wrong_lines")  # one process says all of them
ROOT = Path(__file__).resolve().parents[2]

SECONDS = 1.5
"""In which a mistake is told, of CPU time, with Python's start."""
TYPOS: list[tuple[str, str]] = [
    # commands
    ("evl voting", "unknown command 'evl'. Did you mean 'eval'"),
    ("trian voting", "Did you mean 'train'"),
    ("--help-me", "flowzoo has no option --help-me"),
    ("sandbox", "flowzoo sandbox needs a command: build or check"),
    ("sandbox chek", "unknown command of `flowzoo sandbox` 'chek'. Did you mean 'check'"),
    ("sandbox check --backnd docker", "Did you mean --backend"),
    ("sandbox check --backend dockr", "Did you mean 'docker'"),
    ("sandbox build --with scipy", "scipy"),
    ("sandbox check --image x", "only with --backend docker"),
    ("--verbos list", "Did you mean --verbose"),
    # options
    ("eval voting --polcy pocket", "flowzoo eval has no option --polcy. Did you mean --policy?"),
    ("eval voting -n 3", "Did you mean --n?"),
    ("eval voting --sed 3", "Did you mean --seed"),
    ("eval voting --sample 2", "Did you mean --samples"),
    ("eval voting --temperture 0.5", "Did you mean --temperature"),
    ("play voting --chatz", "Did you mean --chats"),
    ("list --jsn", "flowzoo list has no option --jsn. Did you mean --json?"),
    ("doctor --jason", "Did you mean --json"),
    ("algorithms --json --al", "flowzoo algorithms has no option --al"),
    ("train voting --algoritm grpo", "Did you mean --algorithm"),
    ("train voting --step 3", "Did you mean --steps"),
    ("train voting --learning-rate 1e-4", "flowzoo train has no option --learning-rate"),
    ("train voting --lora-rnk 8", "Did you mean --lora-rank"),
    ("train voting --restrt", "Did you mean --restart"),
    ("sft voting --sorce scripted", "Did you mean --source"),
    ("matrix learning --job 2", "Did you mean --jobs"),
    ("matrix learning --dryrun", "Did you mean --dry-run"),
    ("report {run} --ot x.html", "Did you mean --out"),
    ("export {run} --out {void}/m --polcy a", "Did you mean --policy"),
    ("swap {run} --jsn", "Did you mean --json"),
    ("filter single --out {void}/x.jsonl --hi 0.9", "Did you mean --high"),
    # values
    ("eval voting --n x", "--n takes a whole number, got 'x'"),
    ("eval voting --n 1.5", "--n takes a whole number, got '1.5'"),
    ("eval voting --n", "--n needs a value"),
    ("train voting --lr 1e400", "`lr` must be a finite number, got inf"),
    ("train voting --pass-rates 0.1 nan", "`pass_rates` must be a finite number, got nan"),
    ("sft voting --clip-norm inf", "`clip_norm` must be a finite number, got inf"),
    ("filter voting --high nan --out {void}/x", "--high must be a finite number, got nan"),
    ("eval voting --out=", "an empty word on the command line after --out"),
    ("train", "name a workflow, e.g. `flowzoo train voting`, --env, or a file"),
    ("train --config {nameless}", "name a workflow, e.g. `flowzoo train voting`"),
    ("sft", "name a workflow, e.g. `flowzoo sft voting`"),
    ("eval single --task nosuch", "unknown task 'nosuch'. Valid choices: code, math"),
    ("eval voting --policy hf:{void}", "the folder 'void' holds no config.json"),
    ("train voting --model {void}", "the folder 'void' holds no config.json"),
    ("eval voting --samples two", "--samples takes a whole number, got 'two'"),
    ("eval voting --temperature warm", "--temperature takes a number, got 'warm'"),
    ("eval voting --split trian", "Did you mean 'train'"),
    ("eval voting --engine vlm", "Did you mean 'vllm'"),
    ("eval voting --json=3", "--json takes no value"),
    ("eval voting more words", "unexpected on the command line: more, words"),
    ("eval voting --match tokns", "Did you mean 'tokens'"),
    ("eval voting --sandbox dcker", "Did you mean 'docker'"),
    ("train voting --lr abc", "--lr takes a number, got 'abc'"),
    ("train voting --pass-rates 0.1", "--pass-rates needs 2 values"),
    ("train voting --optimizer adam", "Did you mean 'adamw'"),
    ("train voting --schedule cosin", "Did you mean 'cosine'"),
    ("train voting --wandb", "--wandb needs a value"),
    ("sft voting --epochs many", "--epochs takes a whole number, got 'many'"),
    ("play", "name either a workflow, e.g. `flowzoo play voting`, or --env"),
    ("export {run}", "flowzoo export needs --out PATH"),
    ("filter single", "flowzoo filter needs --out PATH"),
    ("matrix", "flowzoo matrix needs"),
    ("swap", "flowzoo swap needs"),
    ("report", "flowzoo report needs RUN [RUN ...]: Run directories"),
    ("play voting --n 1e3", "--n takes a whole number, got '1e3'"),
    ("play voting --seed x", "--seed takes a whole number, got 'x'"),
    ("new wrkflow x", "what: unknown choice 'wrkflow'. Did you mean 'workflow'"),
    ("new", "Kind of the package; NAME: Short name"),
    ("export", "RUN: Directory of the training run; --out PATH: Folder to write"),
    # names
    ("new workflow 3things", "expected small letters, digits and single underscores"),
    ("new workflow numpy", "a Python module 'numpy' already, which the new one would hide"),
    ("new task math", "there is a workflow or task 'math' already"),
    ("play VOTING", "Did you mean 'voting_v0'"),
    (
        "play {broken_task}:Unasked --policy scripted:1",
        "play() must be a generator, which asks with `yield`, got int",
    ),
    (
        "play {broken_task}:Nobody --policy scripted:1",
        "role 'nobody': expected 1 to 1000 agents, got -1",
    ),
    ("eval voting --policy hf:/nowhere", "there is no folder '/nowhere'"),
    ("train voting --model ./none/at/all", "there is no folder './none/at/all'"),
    ("eval votting", "unknown workflow 'votting'. Did you mean 'voting_v0'"),
    ("eval voting_v7", "unknown workflow 'voting_v7'"),
    ("eval", "name either a workflow, e.g. `flowzoo eval voting`, or --env"),
    ("eval voting --env a:b", "name either a workflow"),
    ("eval no.module:Flow", "importing no.module raised ModuleNotFoundError"),
    ("eval flowzoo.envs.workflows.voting:Votng", "has no 'Votng'; it has Voting"),
    ("eval pathlib:Path", "must be a subclass of flowzoo.envs.Workflow"),
    ("eval {void}/flow.py:Flow", "there is no file"),
    ("eval {file}:Flow", "ModuleNotFoundError"),
    ("eval {broken}:Flow", "importing {broken} raised ZeroDivisionError"),
    ("eval {broken_task}:Flow", "has no 'Flow'"),
    ("eval voting --task maths", "unknown task 'maths'. Did you mean 'math'"),
    ("eval voting --task no.module:Task", "task: importing no.module raised ModuleNotFoundError"),
    ("eval voting --task {broken_task}:Half", "must define answer, answer_lenient"),
    ("eval voting --task {broken_task}:Nameless", "has no `name`"),
    ("eval voting --task {broken_task}:Raises", "making it raised KeyError"),
    ("eval voting --task pathlib:Path", "must be a subclass of flowzoo.envs.Task"),
    ("eval voting --task sudoku --options sid=4", "unknown option of task 'sudoku' 'sid'"),
    ("eval voting --task writing", "voting_v0 does not understand the answers of task 'writing'"),
    ("eval voting --preset papr", "Did you mean 'paper'"),
    ("eval voting --policy generater=pocket", "unknown role 'generater'. Did you mean 'generator'"),
    ("eval voting --policy generator=scripted:1", "no policy for role aggregator"),
    ("eval voting --policy scripted:1 pocket", "one policy for all roles or ROLE=POLICY"),
    ("eval voting --policy generator=pocket generator=pocket", "gives role 'generator' twice"),
    ("eval voting --policy oracle", "unknown policy 'oracle'"),
    ("eval voting --policy scripted", "unknown policy 'scripted'"),
    ("eval voting --policy scripted:often", "expected scripted:P with a probability P"),
    ("eval voting --policy scripted:2", "expected scripted:P with P in [0, 1]"),
    ("eval voting --policy pocket:mathh", "there is no pocket model for the task 'mathh'"),
    ("eval voting --policy pocket:math-xxl", "unknown scale of a pocket model 'xxl'"),
    ("eval voting --policy openai:gpt", "expected openai:MODEL@URL"),
    ("eval voting --policy openai:gpt@http://a:b@host/v1", "must hold no user, password or query"),
    ("eval voting --engine openai", "--engine openai and --endpoint belong together"),
    ("eval voting --endpoint http://localhost:1/v1", "belong together"),
    ("eval voting --thinking generater=on", "generater"),
    ("eval voting --lengths generator=a/b", "generator"),
    ("eval voting --lengths judge=10/10", "judge"),
    ("play sokobn", "unknown workflow 'sokobn'"),
    ("play sokoban --task math", "names a task, and --task names 'math'"),
    ("algorithms gpro", "or 'grpo'"),
    ("train voting --algorithm gpro", "unknown algorithm 'gpro'. Did you mean"),
    ("train votting", "unknown workflow 'votting'"),
    ("train voting --task maths", "unknown task 'maths'"),
    ("train voting --task writing", "does not understand the answers"),
    ("train relay.py:Relay", "there is no file relay.py"),
    ("train voting --sharing generator=a", "the policy map misses role aggregator"),
    ("train voting --sharing sharred", "`sharing` takes shared, isolated, or ROLE=POLICY"),
    ("train voting --sharing generater=a aggregator=b", "unknown role 'generater'"),
    ("train voting --models sharrd=x", "unknown policy 'sharrd'"),
    ("train voting --models x", "`models` takes POLICY=VALUE"),
    ("train voting --frozen sharrd", "unknown policy 'sharrd'"),
    ("train voting --model pocket:maths", "there is no pocket model for the task 'maths'"),
    ("train writing_pair", "there is no pocket model for the task 'writing'"),
    ("train voting --options n_votes", "options are given as NAME=VALUE"),
    ("train voting --options n_votes=0", "n_votes: expected a whole number of at least 1, got 0"),
    ("train voting --options n_vote=3", "n_votes"),
    ("train voting --options level=9", "level 9"),
    ("train voting --split vali", "vali"),
    ("train voting --split test", "trains on test problems"),
    ("train voting --eval-split train", "progress would be measured on problems that were trained"),
    ("train voting --engine openai", "`engine` openai and `endpoint` belong together"),
    ("train voting --config paper/votin", "paper/voting"),
    ("train voting --config nothing.toml", "nothing.toml"),
    ("train --config {file}", "{file}"),
    ("train eval_opt --env a.b:c", "leave out 'eval_opt'"),
    (
        "train --model pocket:math --env nowhere",
        "--env takes module:function or path/to/file.py:function",
    ),
    ("sft votting", "unknown workflow 'votting'"),
    ("sft voting --eval-split train", "`eval_split` is 'train'"),
    ("matrix lerning", "Did you mean 'learning'"),
    ("matrix {void}/none.toml", "none.toml"),
    # numbers
    ("eval voting --n 0", "--n: expected a whole number from 1 to 1000000, got 0"),
    ("eval voting --n -1", "--n: expected a whole number from 1 to 1000000, got -1"),
    ("eval voting --n 99999999999", "--n: expected a whole number from 1 to 1000000"),
    ("eval voting --samples 0", "--samples: expected a whole number"),
    ("eval voting --temperature -1", "temperature must be 0 (greedy) or more"),
    ("eval voting --top-p 2", "top_p must be in (0, 1]"),
    ("eval voting --max-tokens 0", "must be at least 1, got 0"),
    ("eval voting --policy scripted:nan", "expected scripted:P with P in [0, 1]"),
    ("eval voting --temperature nan", "--temperature must be a finite number, got nan"),
    ("play voting --options n_votes=99999999", "role 'generator': expected 1 to 1000 agents"),
    ("eval voting --options n_votes=0", "n_votes: expected a whole number of at least 1, got 0"),
    ("eval voting --options n_vote=3", "n_votes"),
    ("eval voting --options =5", "NAME=VALUE"),
    ("eval voting --options a=1 a=2", "twice"),
    ("play voting --n 0", "--n: expected a whole number"),
    ("play voting --index -1", "--index: expected a whole number from 0"),
    ("filter single --out {void}/x.jsonl --n 0", "--n: expected a whole number"),
    ("filter single --out {void}/x.jsonl --low 0.9 --high 0.1", "bounds of pass rates"),
    ("train voting --steps 0", "`steps` must be greater than 0, got 0"),
    ("train voting --problems -2", "`problems` must be greater than 0"),
    ("train voting --problems 99999999999", "`problems` must be at most"),
    ("train voting --eval-problems 99999999999", "`eval_problems` must be at most"),
    ("train voting --samples 0", "`samples` must be greater than 0"),
    ("train voting --stop-at 90", "`stop_at` is an accuracy above 0 and at most 1"),
    ("train voting --max-staleness 3", "max_staleness=3 needs rollout workers"),
    ("train voting --pass-rates 0.9 0.1", "`pass_rates` must be 0 <= low <= high <= 1"),
    ("matrix learning --jobs -3", "--jobs: expected a whole number from 0 to 1024, got -3"),
    ("matrix learning --jobs 100000", "--jobs: expected a whole number from 0 to 1024"),
    ("report {run} --episodes -1", "`episodes` must be at least 0, got -1"),
    # places
    ("new workflow x --into /proc", "cannot make the folder /proc/x"),
    (
        "eval voting --policy scripted:1 --out {file}",
        "exists and is a file: choose",
    ),
    (
        "eval voting --policy scripted:1 --out {file}/deeper",
        "exists and is a file: choose",
    ),
    ("eval voting --policy scripted:1 --out /proc/nobody", "/proc/nobody"),
    ("eval voting --policy scripted:1 --out {void}/{long}", "File name too long"),
    ("eval voting --policy scripted:1 --n 3 --out {eval}", "with n 4, which is more than 3"),
    ("eval voting --policy scripted:0 --n 4 --out {eval}", "with other settings (policies)"),
    ("eval voting --policy scripted:0 --n 4 --out {run}", "holds no evaluation, but something"),
    ("train voting --out {eval}", "{eval} holds an evaluation of `flowzoo eval`, no training run"),
    ("sft voting --out {eval} --restart", "no training run: choose another --out"),
    ("swap {eval}", "no training run: name the directory of one"),
    ("export {eval} --out {void}/m", "no training run: name the directory of one"),
    ("report {eval}", "its figures are in {eval}/summary.json"),
    ("report {many}", "no run was found in {many} (only evaluations, 1)"),
    ("eval voting --data {void}/none.jsonl", "none.jsonl"),
    ("eval voting --data {file}", "{file}"),
    ("eval voting --like {void}", "{void}"),
    ("filter single --out {void}", "is a directory: name a file"),
    ("filter single --out {file}/x.jsonl", "exists and is a file: choose"),
    ("train voting --out {file}", "exists and is a file: choose"),
    ("train voting --out {file}/deeper", "exists and is a file: choose"),
    ("sft voting --out {file}", "exists and is a file: choose"),
    ("matrix learning --out {file}", "exists and is a file: choose"),
    ("report {void}", "{void}"),
    ("report {void}/none", "none"),
    ("report {run} --out {void}", "expected a file to write the page to"),
    ("export {void} --out {void}/model", "is no run directory: it has no run.json"),
    ("export {run} --out {file}", "exists and is a file: choose"),
    ("swap {void}", "is no run directory: it has no run.json"),
    ("swap {runs}", "is no run directory: it has no run.json; {run} are some"),
]
"""Mistakes that are found before a library of models is loaded."""

BROKEN_TASK = """
from flowzoo.envs.tasks.math.task import MathTask
from flowzoo.envs.tasks.task import Task
from flowzoo.envs.workflow import Workflow

class Half(Task):
    name, kind = "half", "math"
    def size(self, split): return None
    def problem(self, index, split="train"): raise KeyError(index)
    def prompt(self, problem): return ""

class Nameless(MathTask):
    name = None

class Raises(MathTask):
    name = "raises"
    def __post_init__(self): raise KeyError("no level")

class Unasked(Workflow):
    name, roles = "unasked_v0", {"solver": 1}
    def play(self, problem): return 3

class Nobody(Unasked):
    name, roles = "nobody_v0", {"nobody": -1}
"""

RUN_ALL = """
import contextlib, io, json, sys, time
from pathlib import Path
from flowzoo import cli

HEAVY = ("torch", "transformers", "vllm", "datasets")

def tree():
    files = [path for path in Path(".").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    return sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files)

lines, before, loaded = json.loads(sys.stdin.read()), tree(), set()
start = time.process_time()  # of Python and of importing the command
for line in lines:
    out, err, began = io.StringIO(), io.StringIO(), time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = cli.main(line.split())
        except SystemExit as end:
            status = end.code
        except BaseException as error:
            status = repr(error)
    after = tree()
    heavy = {name for name in HEAVY if name in sys.modules} - loaded
    loaded |= heavy
    print(json.dumps({
        "status": status, "out": out.getvalue(), "err": err.getvalue(), "loaded": sorted(heavy),
        "changed": [row[0] for row in set(after) ^ set(before)],
        "cpu": start + time.process_time() - began,
    }))
    before = after
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files and folders that the lines name; no line may change them."""
    root = tmp_path_factory.mktemp("wrong")
    (root / "runs" / "old").mkdir(parents=True)
    (root / "runs" / "old" / "run.json").write_text('{"settings": {"workflow": "voting"}}')
    (root / "runs" / "old" / "metrics.jsonl").write_text('{"step": 0}\n')
    (root / "void").mkdir()
    (root / "file.txt").write_text("not what is wanted\n")
    (root / "nameless.toml").write_text("steps = 3\n")
    (root / "broken.py").write_text("1 / 0\n")
    (root / "broken_task.py").write_text(BROKEN_TASK)
    args = ["eval", "voting", "--policy", "scripted:1", "--n", "4", "--out", "four"]
    done = subprocess.run([sys.executable, "-m", "flowzoo", *args], cwd=root, capture_output=True)
    assert done.returncode == 0, done.stderr
    shutil.copytree(root / "four", root / "many" / "one")
    return {
        "root": str(root), "runs": "runs", "run": "runs/old", "eval": "four", "void": "void",
        "file": "file.txt", "broken": "broken.py", "broken_task": "broken_task.py",
        "nameless": "nameless.toml", "many": "many",
        "long": "x" * 300,
    }  # fmt: skip


def filled(text: str, places: dict[str, str]) -> str:
    """`text` with the places that it names; other braces stay."""
    for name, position in places.items():
        text = text.replace(f"{{{name}}}", position)
    return text


@pytest.fixture(scope="module")
def outcomes(places: dict[str, str]) -> dict[str, dict]:
    """Outcome of every line, in one process."""
    lines = [filled(line, places) for line, _ in TYPOS]
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        cwd=places["root"],
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(row) for row in done.stdout.splitlines()]
    return dict(zip((line for line, _ in TYPOS), rows, strict=True))


def test_there_are_many_and_each_once():
    assert len(TYPOS) >= 120
    assert len({line for line, _ in TYPOS}) == len(TYPOS)


@pytest.mark.parametrize(("line", "message"), TYPOS)
def test_a_wrong_line_is_told_in_one(line, message, outcomes, places):
    row = outcomes[line]
    assert row["status"] == 2, row
    assert row["out"] == ""
    assert row["err"].count("\n") == 1, row["err"]
    assert row["err"].startswith("error: ")
    assert filled(message, places) in row["err"]
    assert row["changed"] == []
    assert row["loaded"] == [], "a library was loaded before the mistake was found"
    assert row["cpu"] < 2 * SECONDS, "a machine that is busy counts up to twice as much"
