"""Checkpoints: complete, exact on resume, safe against death, full disks and exchanged folders."""

import copy
import json
import os
import random
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen3ForCausalLM,
)

from flowzoo.agents.hf.policy import load_model
from flowzoo.agents.identity import ModelIdentity
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.schedule import UpdateTurn
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.run import checkpoint
from flowzoo.baselines.run.checkpoint import CheckpointRetention, load, save
from flowzoo.baselines.run.directory import RunDirectory
from flowzoo.baselines.run.manifest import by_score, checkpoints, read
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.envs.records import Call
from flowzoo.errors import DataError, SaveError, UsageError
from flowzoo.files import sealed
from tests.baselines.rows import SHAPE, VOCAB, new_call, tiny_model

CONFIG = LearnerConfig(lr=1e-2, schedule="cosine", warmup=1, iterations=8)


def make_learner(seed: int = 0, tied: bool = False) -> Learner:
    return Learner(tiny_model(seed, tie_word_embeddings=tied), CONFIG)


def batch(seed: int) -> tuple[list[Call], list[float]]:
    rng = random.Random(seed)
    calls = [
        new_call(episode=f"e{number}", prompt_ids=(1, 2, number), output_ids=(3, 4 + number, 0))
        for number in range(5)
    ]
    return calls, [rng.uniform(-1, 1) for _ in calls]


def weights(learner: Learner) -> dict[str, torch.Tensor]:
    return copy.deepcopy(learner.model.state_dict())


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def test_resume_gives_bit_equal_updates(tmp_path):
    straight = make_learner()
    expected = [straight.update(*batch(number)) for number in range(4)]
    first = make_learner()
    seen = [first.update(*batch(number)) for number in range(2)]
    save(tmp_path, 2, {"solver": first}, state={"cursor": 17})
    second = make_learner(seed=1)
    info = load(tmp_path / "step-00000002", {"solver": second})
    assert info.state == {"cursor": 17}
    seen += [second.update(*batch(number)) for number in range(2, 4)]
    assert seen == expected
    assert same(weights(second), weights(straight))
    assert (second.iteration, second.steps) == (4, 4)


@pytest.mark.parametrize("form", ["flowzoo", "published"])
def test_resume_is_exact_with_everything_that_has_a_state(tmp_path, form):
    """Reference, running mean of gradients, and a schedule that counts both policies' updates."""

    def pair():
        config = LearnerConfig(
            lr=1e-2, schedule="linear", iterations=12, schedule_clock="update", coherence=0.5,
            coherence_form=form, coherence_window=2, role_kl={"a": 0.1}, old_logp="recomputed",
            role_gradients=True, updates_per_iteration="by_rows", rows_per_update=3,
        )  # fmt: skip
        return {name: Learner(make_learner(seed).model, config, turn=UpdateTurn(seed, 2))
                for seed, name in enumerate(("one", "two"))}  # fmt: skip

    def run(learners, steps):
        return [learner.update(*batch(step)) for step in steps for learner in learners.values()]

    straight, first, second = pair(), pair(), pair()
    expected = run(straight, range(4))
    assert expected[-1]["learn/reference_kl"] > 0
    seen = run(first, range(2))
    load(save(tmp_path, 2, first), second)
    assert seen + run(second, range(2, 4)) == expected
    for name, learner in straight.items():
        assert same(weights(learner), weights(second[name]))


def test_random_generators_go_on(tmp_path):
    def draw():
        return random.random(), float(np.random.normal()), float(torch.rand(()))

    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    draw()
    # Normals are drawn in pairs, of which the second is waiting.
    assert np.random.get_state(legacy=False)["has_gauss"] == 1
    learner = make_learner()
    save(tmp_path, 1, {"a": learner})
    expected = [draw() for _ in range(3)]
    random.seed(4)
    np.random.seed(4)
    torch.manual_seed(4)
    load(tmp_path / "step-00000001", {"a": learner})
    assert [draw() for _ in range(3)] == expected


def test_weights_load_with_transformers(tmp_path):
    learner = make_learner()
    vocabulary = {f"w{number}": number for number in range(VOCAB)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token="w0")), unk_token="w0"
    )
    save(tmp_path, 1, {"a": learner}, {"a": tokenizer})
    info = checkpoints(tmp_path)[-1]
    model = AutoModelForCausalLM.from_pretrained(info.policy_path("a"))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert same(weights(learner), dict(model.state_dict()))
    loaded = AutoTokenizer.from_pretrained(info.policy_path("a"))
    assert loaded.get_vocab() == vocabulary


def test_tied_weights(tmp_path):
    learner, other = make_learner(tied=True), make_learner(seed=1, tied=True)
    save(tmp_path, 1, {"a": learner})
    load(tmp_path / "step-00000001", {"a": other})
    assert same(weights(learner), weights(other))


def test_two_policies_keep_their_own(tmp_path):
    learners = {"a": make_learner(0), "b": make_learner(1)}
    learners["b"].update(*batch(0))
    save(tmp_path, 1, learners)
    others = {"a": make_learner(2), "b": make_learner(3)}
    load(tmp_path / "step-00000001", others)
    for name, learner in learners.items():
        assert same(weights(learner), weights(others[name]))
    assert (others["a"].iteration, others["b"].iteration) == (0, 1)


def test_keep_last_and_best(tmp_path):
    learner = make_learner()
    for step, score in enumerate([0.2, 0.9, 0.9, 0.3, None, 0.1]):
        save(tmp_path, step, {"a": learner}, score=score, keep=CheckpointRetention(last=2))
    assert [info.step for info in checkpoints(tmp_path)] == [1, 4, 5]
    best = by_score(checkpoints(tmp_path))[0]
    assert (best.step, best.score) == (1, 0.9)
    assert checkpoints(tmp_path)[-1].step == 5
    save(tmp_path, 6, {"a": learner}, keep=CheckpointRetention(last=1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000006"]


def test_steps_sort_as_numbers(tmp_path):
    learner = make_learner()
    for step in (99_999_999, 100_000_000):
        save(tmp_path, step, {"a": learner})
    assert checkpoints(tmp_path)[-1].step == 100_000_000


def test_no_checkpoint(tmp_path):
    assert checkpoints(tmp_path) == checkpoints(tmp_path / "none") == []


@pytest.mark.parametrize("damage", ["shorten", "remove", "manifest", "garbage"])
def test_latest_passes_over_torn_ones(tmp_path, damage, caplog):
    learner = make_learner()
    for step in (1, 2):
        save(tmp_path, step, {"a": learner})
    torn = tmp_path / "step-00000002"
    file = torn / "policies" / "a" / "learner.pt"
    if damage == "shorten":
        os.truncate(file, 10)
    elif damage == "remove":
        file.unlink()
    elif damage == "manifest":
        (torn / "checkpoint.json").unlink()
    else:
        (torn / "checkpoint.json").write_text('["step"', encoding="utf-8")
    assert checkpoints(tmp_path)[-1].step == 1
    assert "step-00000002" in caplog.text
    with pytest.raises(DataError, match="step-00000002"):
        load(torn, {"a": learner})


def test_death_at_any_system_call_keeps_the_previous_one(tmp_path, monkeypatch):
    """Stop the second save at its n-th write to disk, for every n there is."""
    learner = make_learner()
    old = weights(learner)
    save(tmp_path, 1, {"a": learner}, keep=CheckpointRetention(last=1))
    learner.update(*batch(0))
    calls = {"left": 0}

    class Killed(BaseException):
        pass

    def deadly(function):
        def wrapped(*args, **kwargs):
            if calls["left"] == 0:
                raise Killed
            calls["left"] -= 1
            return function(*args, **kwargs)

        return wrapped

    points = 0
    for limit in range(1000):
        calls["left"] = limit
        with monkeypatch.context() as patch:
            for module, name in (
                (os, "fsync"), (os, "rename"), (torch, "save"), (checkpoint.shutil, "rmtree"),
            ):  # fmt: skip
                patch.setattr(module, name, deadly(getattr(module, name)))
            try:
                save(tmp_path, 2, {"a": learner}, keep=CheckpointRetention(last=1))
            except Killed:
                points += 1
        newest = checkpoints(tmp_path)[-1]
        if newest.step == 2:
            break
        probe = make_learner(seed=5)
        load(newest.path, {"a": probe})
        assert same(weights(probe), old)
    assert points > 8
    probe = make_learner(seed=5)
    load(tmp_path / "step-00000002", {"a": probe})
    assert same(weights(probe), weights(learner))


def test_death_in_the_middle_of_removing_leaves_nothing_torn(tmp_path, monkeypatch):
    learner = make_learner()
    save(tmp_path, 1, {"a": learner}, keep=CheckpointRetention(last=1))

    def die_half_way(folder):
        (folder / "random.pt").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.shutil, "rmtree", die_half_way)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 2, {"a": learner}, keep=CheckpointRetention(last=1))
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000002"]
    save(tmp_path, 3, {"a": learner}, keep=CheckpointRetention(last=1))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]


def test_never_overwrites(tmp_path):
    learner = make_learner()
    save(tmp_path, 1, {"a": learner})
    with pytest.raises(UsageError, match="resume from it"):
        save(tmp_path, 1, {"a": learner})


def test_mistakes_raise(tmp_path):
    learner = make_learner()
    with pytest.raises(UsageError, match="policy name"):
        save(tmp_path, 1, {"../a": learner})
    with pytest.raises(UsageError, match="last"):
        CheckpointRetention(last=0)
    with pytest.raises(UsageError, match="`every` must be at least 0"):
        CheckpointRetention(every=-1)
    assert not list(tmp_path.iterdir())
    path = save(tmp_path, 1, {"a": learner})
    with pytest.raises(UsageError, match="policy map"):
        load(path, {"b": learner})
    with pytest.raises(UsageError, match="Valid choices: a"):
        read(path).policy_path("aa")
    config = copy.deepcopy(learner.model.config)
    config.hidden_size = 32
    other = Learner(Qwen3ForCausalLM(config), replace(learner.config))
    with pytest.raises(UsageError, match="another shape"):
        load(path, {"a": other})
    manifest = json.loads((path / "checkpoint.json").read_text())
    del manifest["sha256"]
    (path / "checkpoint.json").write_text(json.dumps(sealed({**manifest, "format": 99})))
    with pytest.raises(UsageError, match="format 3, got 99"):  # not damage: it is never set aside
        read(path)


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


# The weights take 16 kB and the optimizer's moments twice that.
@pytest.mark.parametrize("limit", [100, 4096, 20_000])
def test_a_failed_write_leaves_the_old_checkpoint_and_nothing_else(
    limit, tmp_path, tiny_model, role_rows, largest_file
):
    learner = Learner(tiny_model(), LearnerConfig(lr=1e-2))
    learner.update(role_rows(), [1.0] * 9)
    save(tmp_path, 1, {"a": learner}, keep=CheckpointRetention(last=1))
    weights, before = copy.deepcopy(learner.model.state_dict()), files(tmp_path)
    learner.update(role_rows(), [-1.0] * 9)
    with largest_file(limit), pytest.raises(SaveError, match="checkpoint of step 2 could not be"):
        save(tmp_path, 2, {"a": learner}, keep=CheckpointRetention(last=1))
    assert files(tmp_path) == before
    other = Learner(tiny_model(5), LearnerConfig(lr=1e-2))
    load(checkpoints(tmp_path)[-1].path, {"a": other})
    assert all(torch.equal(weights[name], w) for name, w in other.model.state_dict().items())
    save(tmp_path, 2, {"a": learner}, keep=CheckpointRetention(last=1))
    assert [info.step for info in checkpoints(tmp_path)] == [2]


def test_damaged_weights_play_for_nobody(tmp_path, tiny_model):
    saved = save(tmp_path, 1, {"a": Learner(tiny_model(), LearnerConfig())}) / "policies" / "a"
    weights = saved / "model.safetensors"
    intact = weights.read_bytes()
    load_model(str(saved), "float32")
    for damaged in (intact[:-1] + bytes([intact[-1] ^ 1]), intact[:9], b""):
        weights.write_bytes(damaged)
        with pytest.raises(DataError, match=r"is damaged: policies/a/model.safetensors has"):
            load_model(str(saved), "float32")
    shutil.copytree(saved, tmp_path / "copy")  # where no manifest knows it
    with pytest.raises(UsageError, match="cannot load a model"):
        load_model(str(tmp_path / "copy"), "float32")


def test_milestones_stay(tmp_path, tiny_model):
    learner = Learner(tiny_model(), LearnerConfig())
    for step in range(7):
        save(tmp_path, step, {"a": learner}, keep=CheckpointRetention(last=1, every=3))
    assert [info.step for info in checkpoints(tmp_path)] == [0, 3, 6]


def test_frozen_policies_are_named_and_not_saved(tmp_path, tiny_model):
    learner = Learner(tiny_model(), LearnerConfig())
    path = save(tmp_path, 1, {"a": learner}, models={"judge": ModelIdentity("some/model", {})})
    info = load(path, {"a": learner})
    assert (info.policies, dict(info.frozen)) == (("a",), {"judge": "some/model"})
    assert not (path / "policies" / "judge").exists()
    with pytest.raises(UsageError, match="weights are those of 'some/model'"):
        info.policy_path("judge")


CHILD = """
import itertools, torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.run.checkpoint import CheckpointRetention, save
torch.set_num_threads(1)
learner = Learner(Qwen3ForCausalLM(Qwen3Config(**SHAPE)), LearnerConfig())
for step in itertools.count(1):
    with torch.no_grad():
        for parameter in learner.parameters:
            parameter.fill_(float(step))
    save(ROOT, step, {"a": learner}, keep=CheckpointRetention(last=1))
    with open(NOTES, "a") as file:
        print(step, file=file, flush=True)
"""


@pytest.mark.full
def test_kill_in_the_middle_of_saving(tmp_path, fork_server):
    """A process that does nothing but save is killed; what it noted as saved is there, whole."""
    outside, tmp_path = tmp_path, tmp_path / "checkpoints"
    script, notes = outside / "child.py", outside / "notes"
    script.write_text(CHILD, encoding="utf-8")
    names = {"SHAPE": SHAPE, "ROOT": str(tmp_path), "NOTES": str(notes)}
    child = fork_server.Process(target=runpy.run_path, args=(str(script), names))
    child.start()
    try:
        deadline = time.monotonic() + 600
        while not notes.exists() or notes.read_text(encoding="utf-8").count("\n") < 3:
            assert child.is_alive(), "it ended by itself"
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.01)
        time.sleep(0.037)
    finally:
        child.kill()
        child.join()
    steps = [int(line) for line in notes.read_text(encoding="utf-8").split()]
    newest = checkpoints(tmp_path)[-1]
    assert newest.step >= max(steps)
    learner = make_learner(seed=1)
    load(newest.path, {"a": learner})
    for parameter in learner.parameters:
        assert bool((parameter == float(newest.step)).all())
    save(tmp_path, newest.step + 1, {"a": learner}, keep=CheckpointRetention(last=1))
    assert [path.name for path in tmp_path.iterdir()] == [f"step-{newest.step + 1:08d}"]


FULL_CHILD = """
import sys
from pathlib import Path
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from flowzoo.baselines.run.checkpoint import CheckpointRetention, load, save
from flowzoo.baselines.run.manifest import checkpoints
from flowzoo.errors import SaveError
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.learner.config import LearnerConfig

torch.set_num_threads(1)
config = Qwen3Config(
    vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=16, intermediate_size=64,
)
learner = Learner(Qwen3ForCausalLM(config), LearnerConfig())
root = Path(sys.argv[1])
save(root, 1, {"a": learner}, keep=CheckpointRetention(last=1))
with torch.no_grad():
    for parameter in learner.parameters:
        parameter.fill_(2.0)
ballast = root / "ballast"
for room in (0, 4, 16, 64, 128, 160):  # KiB left
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
        file.truncate(max(0, file.tell() // 4096 * 4096 - 1024 * room))
    try:
        save(root, 2, {"a": learner}, keep=CheckpointRetention(last=1))
    except SaveError as error:
        print(room, "refused", checkpoints(root)[-1].step, len(list(root.iterdir())))
    else:
        print(room, "saved", checkpoints(root)[-1].step)
        break
    ballast.unlink()
ballast.unlink(missing_ok=True)
if checkpoints(root)[-1].step == 1:
    save(root, 2, {"a": learner}, keep=CheckpointRetention(last=1))
load(checkpoints(root)[-1].path, {"a": learner})
print("whole", checkpoints(root)[-1].step)
"""


def may_mount(folder: Path) -> bool:
    """This process may make a file system of its own."""
    if not shutil.which("unshare"):
        return False
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.full
def test_a_full_disk(tmp_path):
    """On a real file system of 700 KiB, filled up but for less and more room than is needed."""
    if not may_mount(tmp_path):
        pytest.skip("this user may not mount a small file system")
    script = 'mount -t tmpfs -o size=700k tmpfs "$1" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", str(tmp_path), sys.executable, FULL_CHILD],
        cwd=Path(checkpoint.__file__).parents[2], capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *rooms, whole = [line.split() for line in done.stdout.splitlines()]
    assert whole == ["whole", "2"]
    refused = [line for line in rooms if line[1] == "refused"]
    assert len(refused) >= 4
    assert all(line[2:] == ["1", "2"] for line in refused), "the old one and the ballast"


WRITES: dict[str, Callable[[RunDirectory], Any]] = {
    "a step": lambda run: run.log({"step": 1}),
    "a checkpoint": lambda run: run.marks(),
    "transcripts": lambda run: run.save_transcripts("train", 1, []),
}


def opened(out: str) -> RunDirectory:
    run = RunDirectory(TrainConfig(steps=1, problems=2, samples=4, out=out), {}, {})
    run.begin(None)
    return run


@pytest.mark.parametrize("what", WRITES)
def test_nothing_is_written_into_the_folder_of_another_run(what, tmp_path):
    out = tmp_path / "run"
    first = opened(str(out))
    shutil.rmtree(out)
    second = opened(str(out))
    second.log({"step": 0})
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(SaveError, match="run was removed or exchanged while this process"):
        WRITES[what](first)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    WRITES[what](second)


@pytest.mark.parametrize("what", WRITES)
def test_a_removed_folder_is_told(what, tmp_path):
    run = opened(str(tmp_path / "run"))
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(SaveError, match="run was removed or exchanged while this process"):
        WRITES[what](run)
