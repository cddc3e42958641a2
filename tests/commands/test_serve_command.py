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
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import openai
import pytest
from blocks import blocks_of, commands_of

from flowzoo.agents.policy import Sampling
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.specs import make_policy
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.options import BackendName
from flowzoo.baselines.settings.preflight import outline_run
from flowzoo.cli import main
from flowzoo.commands.line import parse
from flowzoo.commands.policies import PolicyOptions
from flowzoo.commands.serve import REFUSED, read_key
from flowzoo.envs import make_workflow
from flowzoo.errors import UsageError
from tools.local_base import package_paths

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


# -- Files of deploy/; none of them was run on a cluster, docs/scale.md says so --------------------


DEPLOY = Path(__file__).parents[2] / "deploy"
SCRIPTS = sorted([*DEPLOY.glob("*.sbatch"), *DEPLOY.glob("*.sh")])
VARIABLES = {
    "$SLURM_JOB_ID": "1", "$SLURM_GPUS_ON_NODE": "8", "$SLURM_NNODES": "2",
    "$SLURM_CPUS_PER_TASK": "64", "$((SLURM_GPUS_ON_NODE - 1))": "7", "$first": "node-1",
    "$RAY_ADDRESS": "10.0.0.1:6379",
}  # fmt: skip


def train_words(text: str, given: str) -> list[str]:
    """The words of `flowzoo train` in the last command of a script, as a shell would make them."""
    command = text.replace("\\\n", " ").strip().splitlines()[-1].replace('"$@"', given)
    for name, value in VARIABLES.items():
        command = command.replace(name, value)
    assert "$" not in command, command
    args = shlex.split(command)
    return args[args.index("train") :]


def config_of(args: list[str], monkeypatch: pytest.MonkeyPatch, ranks: int) -> TrainConfig:
    """The settings, by every rule; their libraries may be missing here."""
    config = parse(tuple(args)).command.settings
    assert isinstance(config, TrainConfig)
    if config.backend == "torchrun" and not config.ranks:  # torchrun has started this one
        for name, value in {"RANK": 0, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": 8}.items():
            monkeypatch.setenv(name, str(value))
    outline_run(config)
    return config


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_shells_and_our_parser_read_the_scripts(path, monkeypatch):
    text = path.read_text(encoding="utf-8")
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert "Not run yet" in text
    assert "set -euo pipefail" in text
    backend = re.findall(r"--backend (\w+)", text)[-1]
    if backend not in get_args(BackendName):
        pytest.skip(f"there is no backend {backend} here")
    given = "voting --model pocket --problems 32 --out runs/a"
    config = config_of(train_words(text, given), monkeypatch, ranks=16)
    assert config.backend == backend
    if path.suffix == ".sbatch":
        directives = dict(re.findall(r"^#SBATCH --([\w-]+)=(.+)$", text, re.MULTILINE))
        assert {"nodes", "gpus-per-node", "ntasks-per-node", "time", "signal"} <= directives.keys()
        assert directives["ntasks-per-node"] == "1", "one process a node starts its ranks"
        assert "srun --kill-on-bad-exit=1" in text
    else:
        assert config.ranks == 8


def test_whoever_reaches_ray_needs_the_token():
    text = (DEPLOY / "ray.sbatch").read_text(encoding="utf-8")
    assert "export RAY_AUTH_MODE=token" in text
    assert text.index("export RAY_AUTH_TOKEN_PATH") < text.index("srun ")
    assert "umask 077" in text
    assert "--min-nodes" in text


def test_the_job_of_kuberay_has_the_fields_that_matter(monkeypatch):
    yaml = pytest.importorskip("yaml", reason="needs flowzoo[train]")
    text = (DEPLOY / "rayjob.yaml").read_text(encoding="utf-8")
    assert "Not run yet" in text
    job: dict[str, Any] = yaml.safe_load(text)
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert job["metadata"]["name"]
    spec, cluster = job["spec"], job["spec"]["rayClusterSpec"]
    assert spec["shutdownAfterJobFinishes"] is True
    assert cluster["authOptions"] == {"mode": "token"}
    head, (workers,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert head["rayStartParams"]["num-gpus"] == "0", "the driver learns there"
    assert workers["groupName"]
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    for group in (head, workers):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"]
        mounts = {item["name"]: item["mountPath"] for item in container["volumeMounts"]}
        assert mounts == {"shared": "/shared", "memory": "/dev/shm"}
        assert {item["name"] for item in pod["volumes"]} == mounts.keys()
        (shared,) = [item for item in pod["volumes"] if item["name"] == "shared"]
        assert shared["persistentVolumeClaim"]["claimName"]
    args = train_words(spec["entrypoint"], "")
    assert args[args.index("--out") + 1].startswith("/shared/")
    gpus = workers["replicas"] * int(container["resources"]["limits"]["nvidia.com/gpu"])
    assert int(args[args.index("--rollout-workers") + 1]) <= gpus
    if "ray" in get_args(BackendName):
        args[args.index("--model") + 1] = "pocket"
        config_of(args, monkeypatch, ranks=1)


def test_an_image_runs_as_a_user_and_takes_what_the_script_gives():
    root = DEPLOY.parent
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    stages = re.split(r"^FROM ", text, flags=re.MULTILINE)
    names = [stage.splitlines()[0].rpartition(" AS ")[2] for stage in stages[1:]]
    assert names == ["install", "cpu", "gpu"]
    for stage in stages[2:]:
        assert re.findall(r"^USER (\w+)$", stage, re.MULTILINE)[-1] == "flowzoo"
    script = root / "tools/image.sh"
    subprocess.run(["bash", "-n", str(script)], check=True)
    arguments = re.findall(r"--build-arg (\w+)=", script.read_text(encoding="utf-8"))
    assert arguments == re.findall(r"^ARG (\w+)", text, re.MULTILINE)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    defaults = re.findall(
        r"extras=\$\{3:-(\w+)\}|^ARG EXTRAS=(\w+)$", script.read_text() + text, re.M
    )
    assert {first or second for first, second in defaults} == {"train"}
    assert "train" in project["optional-dependencies"]


def test_a_local_base_holds_what_the_extras_need_and_not_flowzoo():
    pytest.importorskip("httpx", reason="needs flowzoo[openai]")
    paths = package_paths(["openai"])
    assert all(path.is_file() for path in paths.values())
    packages = {target.split("/")[1] for target in paths}
    assert {"pip", "numpy", "numba", "httpx", "httpcore"} <= packages, "of needs, theirs too"
    assert not packages & {"flowzoo", "torch", "pytest"}
