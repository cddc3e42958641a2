"""The files of deploy/: shells read them, fields are where they belong, our parser takes the words.

None of them was run on a cluster; docs/scale.md says so.
"""

import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest

from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.options import BackendName
from flowzoo.baselines.settings.preflight import outline_run
from flowzoo.commands.line import parse
from tools.local_base import package_paths

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
