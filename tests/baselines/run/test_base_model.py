"""Runs whose model is another one later, under the same name, and runs used from other folders."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from flowzoo.agents.chat.template import stop_tokens
from flowzoo.agents.identity import ModelIdentity, identify
from flowzoo.agents.pocket import pocket_path
from flowzoo.agents.specs import named_model
from flowzoo.baselines.matrix.file import load_matrix
from flowzoo.baselines.matrix.run import training_jobs
from flowzoo.baselines.run.manifest import find_checkpoint
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.sft import SftConfig
from flowzoo.baselines.sft.trainer import SupervisedTrainer
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.finished import open_finished
from flowzoo.baselines.training.trainer import Trainer, train
from flowzoo.baselines.workers.learner import open_learners
from flowzoo.baselines.workers.rollout import RunPlayer
from flowzoo.cli import main
from flowzoo.commands.line import parse
from flowzoo.commands.policies import PolicyOptions
from flowzoo.errors import UsageError

pytestmark = pytest.mark.xdist_group("base_model")  # they share runs

SETTINGS: dict[str, Any] = {
    "workflow": "voting", "model": "m/base", "steps": 1, "problems": 1, "samples": 2,
    "eval_problems": 2, "max_tokens": 8, "threads": 1, "truncated": "train", "kl": 0.1,
    "sharing": ("generator=solver", "aggregator=judge"), "frozen": ("judge",), "lr": 1e-2,
    "device": "cpu",
}  # fmt: skip
ALONE: dict[str, Any] = {**SETTINGS, "sharing": ("shared",), "frozen": (), "lora_rank": 2}
REFUSED = r"base is not the model that {} was made with \({} \w+ -> \w+[,)]"
CHANGED = (
    "model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json",
    "chat_template.jinja", "generation_config.json",
)  # fmt: skip
"""What changes of the base: weights, configuration, tokenizer, chat template, ends."""
ADAPTERS = TrainConfig(**SETTINGS, lora_rank=2, out="lora")
WARM_START = SftConfig(
    workflow="voting", model="m/base", source=("scripted",), n=2, out="sft", epochs=1,
    eval_problems=0, threads=1, device="cpu", lora_rank=2, max_tokens=64,
)  # fmt: skip
MATRIX = """
seeds = [0]
[settings]
model = "m/base"
steps = 1
problems = 1
samples = 2
eval_problems = 2
max_tokens = 8
threads = 1
truncated = "train"
device = "cpu"
[[cells]]
workflow = ["voting"]
algorithm = ["grpo", "dr_mas"]
sharing = ["shared"]
"""
FILTER = "filter voting --n 1 --samples 1 --max-tokens 8 --policy hf:m/base --out rates.jsonl"
EVALUATION = "eval voting --n 1 --max-tokens 8 --policy hf:m/base --out evaluated"


def write_model(folder: Path, seed: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(pocket_path("math"))
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=512,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two models, a run of adapters and one of all weights, made within it."""
    root = tmp_path_factory.mktemp("work")
    for seed, name in enumerate(("base", "other")):
        write_model(root / "m" / name, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for name, rank in (("lora", 2), ("full", 0)):
            train(TrainConfig(**SETTINGS, lora_rank=rank, out=name))
        train(TrainConfig(**ALONE, out="alone"))
        SupervisedTrainer(WARM_START).train()
        for line in (EVALUATION, FILTER):
            assert main(line.split()) == 0
        Path("cells.toml").write_text(MATRIX)
        first = training_jobs(load_matrix("cells.toml"), Path("cells"))[0]
        first.folder.mkdir(parents=True)
        first.arguments()  # writes its settings
        train(first.config)
    return root


@contextmanager
def changed(file: Path, content: bytes) -> Iterator[None]:
    """Another content of a file inside."""
    before = file.read_bytes()
    file.write_bytes(content)
    try:
        yield
    finally:
        file.write_bytes(before)


@contextmanager
def replaced(root: Path) -> Iterator[None]:
    """Other weights in the folder of the base inside."""
    name = "model.safetensors"
    with changed(root / "m" / "base" / name, (root / "m" / "other" / name).read_bytes()):
        yield


def resume(rank: int, out: str) -> Trainer:
    return Trainer(start_run(TrainConfig(**{**SETTINGS, "steps": 2}, lora_rank=rank, out=out)))


def command(line: str) -> None:
    args = parse(line.split()).command
    vars(import_module(type(args).__module__))["run"](args)


def began(run: str) -> Mapping[str, ModelIdentity]:
    return find_checkpoint(Path(run), "last").models


PLACES: dict[str, tuple[str, Callable[[], object]]] = {
    "train adapters": ("the run in lora", lambda: resume(2, "lora")),
    "train all weights, with the base as reference": (
        "the run in full", lambda: resume(0, "full")
    ),
    "sft": ("the run in sft", lambda: SupervisedTrainer(WARM_START)),
    "swap": ("the run in lora", lambda: command("swap lora")),
    "why": ("the run in lora", lambda: command("why lora")),
    "export": ("the adapter in .*", lambda: command("export lora --merge --out new")),
    "eval of a run": (
        "the adapter in .*",
        lambda: command("eval voting --n 1 --policy generator=lora aggregator=scripted:1"),
    ),
    "eval of a frozen policy": (
        "policy 'judge' of full",
        lambda: command("eval voting --n 1 --policy generator=scripted:1 aggregator=full"),
    ),
    "eval that goes on": ("the evaluation in evaluated", lambda: command(EVALUATION)),
    "play": (
        "the adapter in .*",
        lambda: command("play voting --policy generator=lora aggregator=scripted:1"),
    ),
    "filter that goes on": ("the file rates.jsonl", lambda: command(FILTER)),
    "matrix that goes on": (
        "the run in cells/.*", lambda: command("matrix cells.toml --out cells")
    ),
    "serve": (
        "the adapter in .*",
        lambda: command("serve voting --port 0 --policy generator=lora aggregator=hf:m/other"),
    ),
    "worker that learns": (
        "the run in lora", lambda: open_learners(ADAPTERS, began("lora"), ["solver"])
    ),
    "worker that plays": ("the run in lora", lambda: RunPlayer(ADAPTERS, began("lora"))),
}  # fmt: skip
"""Places that open a model again, with its owner in the refusal."""


def test_the_page_about_models_lists_the_places():
    page = Path(__file__).resolve().parents[3] / "docs" / "models.md"
    table = page.read_text(encoding="utf-8").partition("| place |")[2].partition("\n\n")[0]
    assert [line.split(" | ")[0].strip("| ") for line in table.splitlines()[2:]] == list(PLACES)


CASES = [
    pytest.param(place, file, marks=() if (row - column) % len(CHANGED) == 0 else pytest.mark.full)
    for row, place in enumerate(PLACES)
    for column, file in enumerate(CHANGED)
]


@pytest.mark.parametrize(("place", "file"), CASES)
def test_a_changed_base_is_refused_by_name_where_it_is_opened_again(place, file, root, monkeypatch):
    monkeypatch.chdir(root)
    owner, reopen = PLACES[place]
    base = root / "m" / "base" / file
    with (
        changed(base, base.read_bytes() + b" "),
        pytest.raises(UsageError, match=REFUSED.format(owner, file)) as caught,
    ):
        reopen()
    assert "\n" not in str(caught.value)
    assert not (root / "new").exists()


@pytest.mark.parametrize("file", CHANGED)
def test_a_judge_with_a_changed_model_is_asked_again(file, root, monkeypatch):
    monkeypatch.chdir(root)
    judge = named_model("hf:m/base", "math")
    assert judge is not None
    digests = [judge.identity().digest]
    base = root / "m" / "base" / file
    with changed(base, base.read_bytes() + b" "):
        digests.append(judge.identity().digest)
    assert digests[0] != digests[1]  # parts of the keys of kept replies
    assert judge.identity().digest == digests[0]


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors", "base.json"])
def test_a_changed_adapter_is_refused_by_name(file, root, tmp_path, capsys):
    adapter = tmp_path / "adapter"
    assert main(["export", str(root / "lora"), "--out", str(adapter)]) == 0
    path = adapter / file
    path.write_bytes(path.read_bytes() + b" ")
    assert main(["eval", "voting", "--n=1", "--policy", f"hf:{adapter}"]) == 2
    assert file in capsys.readouterr().err


def test_a_run_goes_on_with_another_base_that_is_accepted(root, monkeypatch):
    monkeypatch.chdir(root)
    before = began("alone")["shared"]
    base = root / "m" / "base"
    template = base / "chat_template.jinja"
    text = template.read_text()
    with (
        replaced(root),
        changed(base / "generation_config.json", b'{"eos_token_id": [2, 5]}'),
        changed(template, template.read_bytes() + b"{{ 'other' }}"),
    ):
        with pytest.raises(UsageError, match=r"or go on with this one by --accept-base$"):
            Trainer(start_run(TrainConfig(**{**ALONE, "steps": 2}, out="alone")))
        trainer = Trainer(
            start_run(TrainConfig(**{**ALONE, "steps": 2}, out="alone"), accept_base=True)
        )
        policy = trainer.run.state.trained["shared"]
        assert policy.tokenizer.chat_template == text
        assert stop_tokens(policy.weights.model, policy.tokenizer) == set(before.ends)
        trainer.train()
        train(TrainConfig(**{**ALONE, "steps": 3}, out="alone"))  # it is asked once
    info = find_checkpoint(Path("alone"), "last")
    now = info.models["shared"]
    assert (info.step, now.ends, now.template) == (3, before.ends, before.template)
    old, new = before.digests["model.safetensors"], now.digests["model.safetensors"]
    assert f"model.safetensors {old[:8]} -> {new[:8]}" in now.accepted
    assert before.check("the run") == str(base)  # what was there is back


def test_adapters_play_with_another_base_that_is_accepted(root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(root)
    monkeypatch.setenv("FLOWZOO_CACHE", str(tmp_path / "cache"))
    train(TrainConfig(**ALONE, out="once"))
    line, old = "eval voting --n 1 --max-tokens 8 --policy once --out", began("once")["shared"]
    ends = root / "m" / "base" / "generation_config.json"
    with replaced(root), changed(ends, b'{"eos_token_id": [2, 5]}'):
        assert main([*line.split(), str(tmp_path / "refused")]) == 2
        assert main(["swap", "once"]) == 2
        assert capsys.readouterr().err.count("or go on with this one by --accept-base") == 2
        assert main([*line.split(), str(tmp_path / "new"), "--accept-base"]) == 0
        assert main(["swap", "once", "--accept-base"]) == 0
        assert main(["swap", "lora", "--accept-base"]) == 2  # of its frozen policy nothing is kept
        new = identify("m/base").digests["model.safetensors"]
    difference = f"model.safetensors {old.digests['model.safetensors'][:8]} -> {new[:8]}"
    (model,) = json.loads((tmp_path / "new" / "run.json").read_text())["settings"][
        "models"
    ].values()
    assert difference in model["accepted"]
    assert tuple(model["ends"]) == old.ends
    swaps = json.loads(Path("once", "swaps.json").read_text())
    assert difference in swaps["accepted"]["shared"]


def test_an_adapter_and_a_frozen_policy_play_with_their_own_model(root, tmp_path, capsys):
    words = ["eval", "voting", "--n=1", "--policy"]
    adapter = f"hf:{find_checkpoint(root / 'lora', 'last').policy_path('solver')}"
    export = ["export", str(root / "lora"), "--out"]
    assert main([*export, str(tmp_path / "adapter")]) == 0
    with replaced(root):
        for policy in (str(root / "lora"), str(root / "full"), adapter):
            assert main([*words, policy]) == 2
        # A checkpoint has all weights of a policy that was trained without adapters.
        assert main([*words, f"generator={root / 'full'}", "aggregator=scripted:1"]) == 0
        assert main([*words, f"hf:{tmp_path / 'adapter'}"]) == 2
        assert main([*export, str(tmp_path / "merged"), "--merge"]) == 2
    said = capsys.readouterr().err
    assert said.count("base is not the model that") == 5
    assert said.count(f"policy 'judge' of {root / 'full'} was made with") == 1
    assert said.count(f"the adapter in {tmp_path / 'adapter'} was made with") == 1
    assert not (tmp_path / "merged").exists()


def test_a_role_that_is_named_wins_over_a_run(root):
    run = str(root / "full")
    for policies in ((run, "aggregator=scripted:1"), ("aggregator=scripted:1", run)):
        given = PolicyOptions(policy=policies).by_role(("generator", "aggregator"))
        assert given["aggregator"] == "scripted:1"
        assert given["generator"].startswith("hf:")
    twice = PolicyOptions(policy=(run, f"aggregator={run}", "aggregator=human"))
    with pytest.raises(UsageError, match="'aggregator' twice"):
        twice.by_role(("generator", "aggregator"))


def test_a_finished_run_is_opened_with_its_model(root, monkeypatch):
    monkeypatch.chdir(root)
    error = pytest.raises(UsageError, match="base is not the model that the run in lora")
    with replaced(root), error, open_finished(Path("lora")):
        pass


def test_a_run_is_used_from_another_folder(root, tmp_path, monkeypatch, capsys):
    shutil.copytree(root / "lora", tmp_path / "lora")
    monkeypatch.chdir(tmp_path)
    assert main(["eval", "voting", "--policy", "lora", "--n=1"]) == 0  # without --max-tokens
    assert main(["export", "lora", "--merge", "--out", "merged"]) == 0
    with open_finished(Path("lora")) as run:
        assert run.step == 1
    train(TrainConfig(**{**SETTINGS, "steps": 2}, lora_rank=2, out="lora"))
    info = find_checkpoint(Path("lora"), "last")
    base = root / "m" / "base"
    assert (info.step, info.frozen["judge"]) == (2, str(base))
    config = json.loads((info.policy_path("solver") / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(base)
    assert "on the hub" not in capsys.readouterr().err


def test_a_base_that_is_gone_is_not_looked_up_on_the_hub(root, monkeypatch, capsys):
    monkeypatch.chdir(root)
    (root / "m" / "base").rename(root / "m" / "away")
    try:
        assert main(["eval", "voting", "--policy", "lora", "--n=1"]) == 2
        assert main(["export", "lora", "--merge", "--out", "merged"]) == 2
        with pytest.raises(UsageError, match="there is no such folder"):
            Trainer(start_run(TrainConfig(**{**SETTINGS, "steps": 2}, lora_rank=2, out="lora")))
    finally:
        (root / "m" / "away").rename(root / "m" / "base")
    said = capsys.readouterr().err
    assert said.count("and there is no such folder: put it back") == 2
    assert "on the hub" not in said


def test_training_does_not_start_from_an_adapter(root, tmp_path):
    main(["export", str(root / "lora"), "--out", str(tmp_path / "adapter")])
    settings = {**SETTINGS, "model": str(tmp_path / "adapter"), "out": str(tmp_path / "run")}
    with pytest.raises(UsageError, match=r"holds an adapter, .* `flowzoo export RUN .* --merge"):
        Trainer(start_run(TrainConfig(**settings)))
    assert not (tmp_path / "run").exists()
