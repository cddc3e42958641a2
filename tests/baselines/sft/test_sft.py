"""A warm start: what is taught, that it is the cross-entropy of replies alone, and resuming."""

import copy
import itertools
import json
import shlex
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from benchmarks.families.check import FAMILIES
from benchmarks.families.models import make_tokenizer
from flowzoo.agents import PolicyMap, Sampling
from flowzoo.agents.hf.policy import TransformersPolicy, load_model
from flowzoo.agents.pocket import pocket_path
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.baselines.learner.config import LearnerConfig, LossConfig
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.run.directory import plain
from flowzoo.baselines.run.manifest import find_checkpoint
from flowzoo.baselines.settings.preflight import outline_run
from flowzoo.baselines.settings.sft import SftConfig, Taught
from flowzoo.baselines.sft import trainer as sft_trainer
from flowzoo.baselines.sft.choose import (
    SftCounts,
    best_of,
    choose,
    quotes,
    read_transcripts,
    reason_against,
)
from flowzoo.baselines.sft.rows import RowMaker, RowTokenizer
from flowzoo.baselines.sft.sources import ScriptedPlay, Transcript, play_scripted, read_source
from flowzoo.baselines.sft.trainer import SAVE_S, SAVE_SHARE, SaveClock, SupervisedTrainer
from flowzoo.cli import main
from flowzoo.envs import EpisodeRecord, make_workflow
from flowzoo.errors import DataError, UsageError
from tests.baselines.rows import copy_after, new_call
from tests.refused import refused

pytestmark = pytest.mark.xdist_group("sft")  # they share a run

SMALL: dict[str, Any] = {
    "n": 8, "epochs": 2, "batch": 8, "eval_problems": 3, "checkpoint_every": 1, "threads": 1,
    "max_tokens": 24, "keep_last": 9,
}  # fmt: skip
PLAY = ScriptedPlay("train", 3, 1, 0)


def run(root: Path, **changes: Any) -> dict[str, Any]:
    return SupervisedTrainer(SftConfig(**{**SMALL, **changes, "out": str(root)})).train()


def weights_below(root: Path) -> dict[Path, bytes]:
    """Weights of the models that a run has made."""
    paths = (root / "models").rglob("*.safetensors")
    return {path.relative_to(root): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished warm start of the small settings, only to be read."""
    root = tmp_path_factory.mktemp("sft") / "whole"
    run(root)
    return root


@pytest.fixture(scope="module")
def played() -> list[EpisodeRecord]:
    """What the pocket model plays of voting on problems of the split train."""
    workflow = make_workflow("voting")
    model, tokenizer = load_model(str(pocket_path()), "float32")
    policy = TransformersPolicy(model, tokenizer, sampling=Sampling(max_tokens=32))
    jobs = [
        EpisodeJob(problem, sample)
        for problem in distinct_problems(workflow.task, "train", 6)
        for sample in range(3)
    ]
    return Rollout(workflow, PolicyMap.shared(policy, workflow.roles)).run(jobs)


def saved(path: Path, records: list[EpisodeRecord], *, ids: bool) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(record.to_json() if ids else plain(record)) for record in records]
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def row_maker(sharing: str = "shared") -> RowMaker:
    workflow = make_workflow("voting")
    model, tokenizer = load_model(str(pocket_path()), "float32")
    names = {role: role if sharing == "isolated" else "shared" for role in workflow.roles}
    own = RowTokenizer.of(model, tokenizer, None, 0)
    return RowMaker(workflow.roles, names, dict.fromkeys(names.values(), own))


# -- the run -------------------------------------------------------------------------------------


def test_held_out_loss_falls_and_the_model_is_one_that_training_takes(whole, repeated_rows):
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["loss_after"] < summary["loss_before"]
    assert summary["data"]["trained"] > 0 < summary["data"]["held_out"]
    folder = summary["models"]["shared"]
    model = AutoModelForCausalLM.from_pretrained(folder)
    AutoTokenizer.from_pretrained(folder)
    started = AutoModelForCausalLM.from_pretrained(pocket_path())
    assert not torch.equal(model.lm_head.weight, started.lm_head.weight.float())
    assert main(["export", str(whole), "--out", str(whole.parent / "exported")]) == 0
    card = (whole.parent / "exported" / "README.md").read_text(encoding="utf-8")
    assert "Trained with sft from pocket" in card
    assert "| before training | 0 |" in card
    kept = repeated_rows(whole)
    assert [row["step"] for row in kept if "eval/loss/mean" in row] == [0, 2, 4]
    assert {"eval/loss/generator", "eval/loss/aggregator", "eval/scores"} <= kept[0].keys()


def test_it_ends_when_the_held_out_loss_rises_and_keeps_the_best_models(tmp_path, repeated_rows):
    changes: dict[str, Any] = {"epochs": 5, "stop_patience": 1, "eval_problems": 2, "lr": 0.05,
                               "model": "pocket:xs", "schedule": "constant"}  # fmt: skip
    summary = run(tmp_path / "short", **changes)
    found = repeated_rows(tmp_path / "short")
    losses = [row["eval/loss/mean"] for row in found if "eval/loss/mean" in row]
    assert len(losses) < 6
    assert losses[-1] >= min(losses[:-1])
    assert all(later < earlier for earlier, later in itertools.pairwise(losses[:-1]))
    assert "was below its" in summary["stopped"]
    best = find_checkpoint(tmp_path / "short", "best")
    assert best.step == summary["least_step"] < summary["steps"]
    assert weights_of(best.policy_path("shared")) == weights_of(Path(summary["models"]["shared"]))
    assert run(tmp_path / "short", **changes) == summary
    assert not (tmp_path / "short" / "aside").exists(), "the summary was that of a finished run"
    summary = run(tmp_path / "short", **changes | {"stop_patience": 0})
    assert summary["steps"] > best.step, "it goes on, and its last models are others"
    last = find_checkpoint(tmp_path / "short", "last")
    assert weights_of(last.policy_path("shared")) == weights_of(Path(summary["models"]["shared"]))
    assert (tmp_path / "short" / "aside" / "1" / "models" / "shared").is_dir()
    with pytest.raises(UsageError, match="`stop_patience` compares held-out losses"):
        run(tmp_path / "none", **{**changes, "eval_problems": 0})


def weights_of(folder: Path) -> bytes:
    (file,) = folder.glob("*.safetensors")
    return file.read_bytes()


@pytest.mark.full
def test_a_stopped_run_goes_on_with_the_same_numbers_and_weights(tmp_path, repeated_rows):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    # Else it would end before step 3.
    changes: dict[str, Any] = {"sharing": ("isolated",), "eval_problems": 1, "batch": 4}
    trainer = SupervisedTrainer(SftConfig(**{**SMALL, **changes, "out": str(whole)}))
    trainer.train(copy_after(3, whole, parts))
    shutil.rmtree(parts / "checkpoints" / "step-00000003")  # killed before: its row is done again
    run(parts, **changes)
    assert repeated_rows(parts) == repeated_rows(whole)
    assert weights_below(parts) == weights_below(whole) != {}


def test_a_run_that_is_stopped_within_an_epoch_has_what_was_saved_by_the_clock(
    whole, tmp_path, monkeypatch, repeated_rows
):
    monkeypatch.setattr(sft_trainer, "SAVE_S", 0.0)
    monkeypatch.setattr(sft_trainer, "SAVE_SHARE", float("inf"))

    def stop(row):
        if row["step"] == 1:
            raise KeyboardInterrupt

    trainer = SupervisedTrainer(SftConfig(**{**SMALL, "checkpoint_every": 0, "out": str(tmp_path)}))
    assert trainer.epoch_steps > 1
    with pytest.raises(KeyboardInterrupt):
        trainer.train(stop)
    monkeypatch.undo()
    again = SupervisedTrainer(SftConfig(**{**SMALL, "checkpoint_every": 0, "out": str(tmp_path)}))
    assert again.step == 1
    again.train()
    assert repeated_rows(tmp_path) == repeated_rows(whole)
    assert weights_below(tmp_path) == weights_below(whole) != {}


@pytest.mark.full
def test_another_seed_is_another_run(whole, tmp_path, repeated_rows):
    def stop(row):
        if row["step"] == 1:
            raise KeyboardInterrupt

    other = SftConfig(**{**SMALL, "seed": 1, "out": str(tmp_path / "other")})
    with pytest.raises(KeyboardInterrupt):
        SupervisedTrainer(other).train(stop)
    rows = repeated_rows(tmp_path / "other")
    assert len(rows) == 2
    assert rows[1] != repeated_rows(whole)[1]


@pytest.mark.full
def test_an_adapter_is_trained_and_written_as_a_whole_model(tmp_path):
    summary = run(tmp_path, lora_rank=4, epochs=1, lr=5e-3)
    assert summary["loss_after"] < summary["loss_before"]
    assert not list((tmp_path / "models" / "shared").glob("adapter*"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "models" / "shared")
    started = AutoModelForCausalLM.from_pretrained(pocket_path()).float()
    assert torch.equal(model.model.embed_tokens.weight, started.model.embed_tokens.weight)
    assert not torch.equal(
        model.model.layers[0].mlp.up_proj.weight, started.model.layers[0].mlp.up_proj.weight
    )


def test_a_run_that_was_taught_other_replies_is_not_continued(tmp_path):
    chats = tmp_path / "chats.jsonl"
    line = {"messages": [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]}
    chats.write_text(json.dumps(line))
    words: dict[str, Any] = {"source": (str(chats),), "held_back": 0.0, "eval_problems": 0}
    run(tmp_path / "run", **words)
    line["messages"][1]["content"] = "5"
    chats.write_text(json.dumps(line))
    with pytest.raises(UsageError, match="other replies than its sources hold now"):
        run(tmp_path / "run", **words)


def test_the_command_prints_one_that_goes_on(tmp_path, capsys):
    words = ["sft", "single", "--n", "4", "--epochs", "1", "--eval-problems", "2", "--threads", "1",
             "--max-tokens", "16", "--task", "math", "--options", "level=1",
             "--out", str(tmp_path / "warm start")]  # fmt: skip
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "episodes  4, kept 4" in shown
    assert main([*words, "--lr", "0.5"]) == 2
    assert "holds a run with other settings (lr None -> 0.5)" in capsys.readouterr().err
    program, *printed = shlex.split(shown.splitlines()[-1].removeprefix("next"))
    assert program == "flowzoo"
    few = ["--steps", "1", "--problems", "1", "--samples", "2", "--out", str(tmp_path / "run")]
    assert main([*printed, *few]) == 0
    settings = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert settings["options"] == ["level=1"]
    assert (settings["task"], settings["eval_problems"], settings["max_tokens"]) == ("math", 2, 16)
    assert settings["model"] == str(tmp_path / "warm start" / "models" / "shared")


# -- what is minimised ---------------------------------------------------------------------------


def test_a_step_is_that_of_independent_cross_entropy_on_the_replies_alone():
    transcripts = read_source("scripted", make_workflow("voting"), PLAY)
    calls = row_maker().rows(transcripts, "right", SftCounts())["shared"]
    model, _ = load_model(str(pocket_path()), "float32")
    other = copy.deepcopy(model)
    loss = LossConfig(ratio="none", clip_low=None, clip_high=None, dual_clip=None)
    learner = Learner(model, LearnerConfig(loss=loss, lr=1e-3, weight_decay=0.0, adam_eps=1e-3))
    with torch.no_grad():
        before = float(plain_loss(other, calls))
    assert float(learner.gaps(calls).mean()) == pytest.approx(before, 1e-5)
    learned = learner.update(calls, [1.0] * len(calls))
    # A large eps: Adam would make the rounding of gradients that are next to nothing visible.
    optimizer = torch.optim.AdamW(other.parameters(), lr=1e-3, weight_decay=0.0, eps=1e-3)
    expected = plain_loss(other, calls)
    expected.backward()
    norm = torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
    optimizer.step()
    assert learned["learn/loss"] == pytest.approx(before, 1e-5)
    assert learned["learn/grad_norm"] == pytest.approx(float(norm), 1e-4)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=0)


def plain_loss(model: Any, calls: Any) -> Any:
    """Mean cross-entropy of all reply tokens, one row at a time, by torch alone."""
    losses = []
    for call in calls:
        ids = torch.tensor([[*call.prompt_ids, *call.output_ids]])
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits[0]
        labels = ids[0, 1:].clone()
        labels[: len(call.prompt_ids) - 1] = -100
        losses.append(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
    return torch.stack(losses).sum() / sum(len(call.output_ids) for call in calls)


# -- sources -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [True, False])
def test_rows_are_tokenized_as_they_were_sampled(played, tmp_path, ids):
    name = "episodes.jsonl" if ids else "transcripts/train-000001.jsonl"
    saved(tmp_path / name, played, ids=ids)
    transcripts = read_source(str(tmp_path), make_workflow("voting"), PLAY)
    counts = SftCounts()
    found = row_maker().rows(transcripts, "all", counts)["shared"]
    sampled = {
        (call.prompt_ids, call.reply): call.output_ids
        for record in played for call in record.calls if call.finish == "stop"
    }  # fmt: skip
    same = [tuple(sampled[row.prompt_ids, row.reply]) == row.output_ids for row in found]
    assert len(same) > 20  # prompts are equal: else the key would be missing
    assert sum(same) >= 0.9 * len(same)  # the model may have sampled other tokens of equal text
    assert counts.compared == len(found)
    assert counts.as_sampled >= sum(same)
    cut = sum(call.finish == "length" for record in played for call in record.calls)
    assert counts.replies_left_out["cut off at the length limit"] == cut


def test_chats_teach_every_message_of_the_assistant(tmp_path):
    chat = [("system", "S"), ("user", "1+1"), ("assistant", "2"), ("user", "and 3"),
            ("assistant", "5")]  # fmt: skip
    line = {"messages": [{"role": role, "content": text} for role, text in chat], "agent": "x"}
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({**line, "agent": "generator"}) + "\n")
    maker, workflow = row_maker("isolated"), make_workflow("voting")
    found = maker.rows(read_source(str(path), workflow, PLAY), "right", SftCounts())
    assert [call.reply for call in found["generator"]] == ["2", "5"]
    assert found["aggregator"] == []
    first, second = found["generator"]
    own = maker.tokenizers["generator"]
    assert first.output_ids[-1] == own.end
    assert own.chat.decode(second.output_ids[:-1]) == "5"
    assert len(second.prompt_ids) > len(first.prompt_ids) + len(first.output_ids)
    path.write_text(json.dumps(line))
    with pytest.raises(UsageError, match=r"unknown role or agent in .*'x'.*generator_2"):
        maker.rows(read_source(str(path), workflow, PLAY), "right", SftCounts())
    path.write_text(json.dumps({"messages": line["messages"]}))
    with pytest.raises(UsageError, match='aggregator, generator could learn from it: add "agent"'):
        maker.rows(read_source(str(path), workflow, PLAY), "right", SftCounts())
    path.write_text(json.dumps({**line, "agent": None, "problem": None, "score": None}))
    (transcript,) = read_source(str(path), workflow, PLAY)
    assert (transcript.problem, transcript.replies[0].agent) == ("", ""), "null is as left out"


@pytest.mark.parametrize(("line", "text"), refused(__file__, "lines"))
def test_lines_that_are_no_transcript(line, text, tmp_path):
    good = {"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]}
    path = tmp_path / "chats.jsonl"
    for lines in ([json.dumps(good), line], [json.dumps(good), line, json.dumps(good)]):
        path.write_text("\n".join(lines))
        with pytest.raises(DataError, match=text if len(lines) == 3 else "line 2: not an episode"):
            read_source(str(path), make_workflow("voting"), PLAY)


def test_sources_that_are_not_there(tmp_path, played):
    workflow = make_workflow("voting")
    with pytest.raises(UsageError, match="is no file or folder: expected scripted"):
        read_source("scripte", workflow, PLAY)
    with pytest.raises(UsageError, match=r"holds no transcripts: expected episodes\.jsonl"):
        read_source(str(tmp_path), workflow, PLAY)
    with pytest.raises(UsageError, match="probability P"):
        read_source("scripted:often", workflow, PLAY)
    other = [replace(record, workflow="single_v0") for record in played[:1]]
    with pytest.raises(UsageError, match="are of single_v0, and voting_v0 is taught"):
        read_source(saved(tmp_path / "e.jsonl", other, ids=True), workflow, PLAY)


# -- the choice ----------------------------------------------------------------------------------


def transcript(problem: str, score: float, number: int) -> Transcript:
    return Transcript("s", problem, "t", f"{problem}#{number}", score, False, ())


def test_the_best_of_every_problem_stay():
    scores = {"a": (0.5, 1.0, 1.0), "b": (0.2, 0.9, 0.1)}
    every = [transcript(name, scores[name][i], i) for i in range(3) for name in scores]
    assert [one.episode for one in best_of(every, 1)] == ["a#1", "b#1"]
    assert [one.episode for one in best_of(every, 2)] == ["b#0", "a#1", "b#1", "a#2"]
    counts = SftCounts()
    kept = choose(every, SftConfig(threshold=0.9, best=1), (), counts)
    assert [one.episode for one in kept] == ["a#1", "b#1"]
    assert counts.left_out == {"score below the threshold": 3, "not among the best": 1}


def test_only_replies_that_did_their_job_are_taught():
    (one,) = read_source("scripted", make_workflow("voting"), ScriptedPlay("train", 1, 1, 0))
    first, second, third, last = one.replies
    replies = (
        first,
        replace(second, reply="So it is 1.", role_score=0.0),
        replace(third, reply="I do not know.", strict=False, role_score=None),
        replace(last, shortened=1),
    )
    found: dict[str, list[str]] = {}
    for taught in get_args(Taught):
        counts = SftCounts()
        made = row_maker().rows([replace(one, replies=replies)], taught, counts)["shared"]
        found[taught] = [call.reply for call in made]
        assert counts.replies == len(made) + sum(counts.replies_left_out.values())
        assert counts.replies_left_out["prompt was shortened"] == 1
    assert found["right"] == [first.reply]
    assert found["readable"] == [first.reply, "So it is 1."]
    assert found["all"] == [first.reply, "So it is 1.", "I do not know."]


def test_held_out_problems_are_refused(tmp_path, played, capsys):
    validation = [replace(one, problem=one.problem.replace("/train/", "/validation/"))
                  for one in played]  # fmt: skip
    words = ["sft", "voting", "--eval-problems", "3", "--out", str(tmp_path / "run"), "--source"]
    assert main([*words, saved(tmp_path / "a.jsonl", validation, ids=True)]) == 2
    assert "problems of the split 'validation' (the first is math/validation/" in (
        " ".join(capsys.readouterr().err.split())
    )
    held = distinct_problems(make_workflow("voting").task, "validation", 3)[1]
    smuggled = [replace(played[0], text=held.text)]
    assert main([*words, saved(tmp_path / "b.jsonl", smuggled, ids=True)]) == 2
    assert f"is that of the held-out problem {held.id}" in " ".join(capsys.readouterr().err.split())
    chat = [{"role": "user", "content": f"Please. {held.text} Thanks"},
            {"role": "assistant", "content": "7"}]  # fmt: skip
    (tmp_path / "c.jsonl").write_text(json.dumps({"messages": chat}))
    assert main([*words, str(tmp_path / "c.jsonl")]) == 2
    assert "1 quotes a held-out problem" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


def test_a_longer_sum_does_not_quote_a_shorter_one():
    assert quotes("Compute 12+7.", ["12+7"])
    assert not quotes("Compute 112+7.", ["12+7"])
    assert not quotes("Compute 12+78.", ["12+7"])
    assert quotes("Compute 12+78 and 12+7", ["12+7"])


def test_chats_that_are_measured_are_not_trained_on(tmp_path):
    chats = [
        {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "7"}]}
        for text in ("3+4", "2+5", "1+6")
    ]
    one, all_three = (tmp_path / name for name in ("one.jsonl", "all.jsonl"))
    one.write_text(json.dumps(chats[1]) + "\n")
    all_three.write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    config, counts = SftConfig(source=(str(all_three),), validation=(str(one),)), SftCounts()
    taught, measured = read_transcripts(config, make_workflow("voting"), (), counts)
    texts = [
        [chat.replies[0].messages[0]["content"] for chat in part] for part in (taught, measured)
    ]
    assert texts == [["3+4", "1+6"], ["2+5"]]
    assert (counts.used, counts.left_out["measured, too"]) == (2, 1)


def test_problems_are_held_back_whole(tmp_path, played):
    path = saved(tmp_path / "e.jsonl", played, ids=True)
    config = SftConfig(source=(path,), held_back=0.5, threshold=0.0, replies="all",
                       eval_problems=0, threads=1, out=str(tmp_path / "run"))  # fmt: skip
    trainer = SupervisedTrainer(config)
    sides = [
        {call.problem for calls in side.values() for call in calls}
        for side in (trainer.rows, trainer.held_out)
    ]
    trainer.close()
    assert all(sides)
    assert not sides[0] & sides[1]


@pytest.mark.parametrize(("changes", "text"), refused(__file__, "settings"))
def test_settings_that_cannot_be_meant(changes, text):
    with pytest.raises(UsageError, match=text):
        SftConfig(**changes)


def test_sgd_takes_the_rate_that_is_given():
    def begin(**changes: Any) -> Any:
        return outline_run(SftConfig(optimizer="sgd", **changes).run_settings(), warm_start=True)

    assert begin(lr=0.1).names == ["shared"]
    with pytest.raises(UsageError, match="`optimizer` sgd needs an `lr`"):
        begin()


def test_scripted_validation_needs_problems(tmp_path):
    with pytest.raises(UsageError, match="plays `eval_problems` problems, and these are 0"):
        run(tmp_path, validation=("scripted",), eval_problems=0)


def test_nothing_left_to_teach_says_why(tmp_path):
    with pytest.raises(UsageError, match=r"no reply is left to teach policy shared: of 8 episodes "
                       "8 were kept; left out: .*longer than max_length"):  # fmt: skip
        run(tmp_path, max_length=3)


def test_a_checkpoint_is_due_after_minutes_and_what_is_slow_to_save_is_saved_rarely():
    now = 0.0
    clock = SaveClock(lambda: now)
    now = SAVE_S - 1
    assert not clock.due
    now = SAVE_S
    assert clock.due
    with clock.saving():
        now += 60.0
    assert not clock.due
    now += 60.0 / SAVE_SHARE - 1
    assert not clock.due
    now += 1
    assert clock.due


ASKED = [{"role": "user", "content": "2 + 3?"}]
THOUGHT = "<think>Odd.</think>5"
EMPTY = "<think>\n\n</think>\n\n"


def taught(name: str, reply: str, thinking: bool | None = None) -> str:
    """What a reply adds to its prompt in the row that is taught; "" if it is left out."""
    tokenizer = make_tokenizer(FAMILIES[name])
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8, num_hidden_layers=1,
            num_attention_heads=1, max_position_embeddings=256,
            eos_token_id=tokenizer.convert_tokens_to_ids(FAMILIES[name]["stops"]),
        )
    )  # fmt: skip
    rows = RowTokenizer.of(model, tokenizer, thinking, 0)
    recorded = new_call("solver", messages=tuple(ASKED), reply=reply)
    transcript = Transcript("chats", "", "", "chats:0", 1.0, False, (recorded,))
    counts = SftCounts()
    made = RowMaker({"solver": 1}, {"solver": "p"}, {"p": rows})
    calls = made.rows([transcript], "all", counts)["p"]
    if not calls:
        assert sum(counts.replies_left_out.values()) == 1
        return ""
    (call,) = calls
    prompt = tokenizer.decode(call.prompt_ids)
    return tokenizer.decode((*call.prompt_ids, *call.output_ids)).removeprefix(prompt)


@pytest.mark.parametrize(
    ("name", "thinking", "reply", "row"),
    [
        ("phi-3", None, "5", " 5<|end|>"),  # its tokenizer puts a space before every text
        ("qwen-2", None, "5", "5<|im_end|>"),
        ("qwen-3", None, "5", f"{EMPTY}5<|im_end|>"),
        ("qwen-3", True, "5", f"{EMPTY}5<|im_end|>"),
        ("qwen-3", False, "5", "5<|im_end|>"),
        ("qwen-3", None, THOUGHT, "<think>\nOdd.\n</think>\n\n5<|im_end|>"),
        ("qwen-3", False, THOUGHT, ""),
        ("gpt-oss", None, "5", "<|channel|>final<|message|>5<|return|>"),
        (
            "gpt-oss", None, THOUGHT,
            "<|channel|>analysis<|message|>Odd.<|end|><|start|>assistant"
            "<|channel|>final<|message|>5<|return|>",
        ),
        ("mistral-1", None, "5", " 5</s>"),
        ("mistral-think", None, THOUGHT, "[THINK]Odd.[/THINK]5</s>"),
        ("llama-3", None, " 5\n", "5<|eot_id|>"),
        ("deepseek-r1", None, THOUGHT, "Odd.</think>5<｜end▁of▁sentence｜>"),
        ("deepseek-r1", None, "5", ""),
        ("glm-4", None, "5", "\n5<|user|>"),
        ("neox", None, "5<|im_start|>", ""),
    ],
)  # fmt: skip
def test_a_row_is_what_the_template_writes_after_the_prompt(name, thinking, reply, row):
    assert taught(name, reply, thinking) == row


GAMES = Path(__file__).resolve().parents[3] / "examples" / "games.py"


@pytest.fixture(scope="module")
def episodes() -> list[Transcript]:
    workflow = make_workflow(f"{GAMES}:Commons")
    return play_scripted("scripted", workflow, 0.5, ScriptedPlay("train", 20, 1, 0))


def test_a_game_needs_no_threshold(episodes):
    assert all(episode.pays and (episode.score or 0) < 1 for episode in episodes[:5])
    counts = SftCounts()
    kept = choose(episodes, SftConfig(workflow="x"), (), counts)
    assert (len(kept), counts.left_out["score below the threshold"]) == (20, 0)
    reasons = Counter(reason_against(reply, "right") for one in kept for reply in one.replies)
    assert reasons == {"": 60}


def test_a_threshold_that_is_given_counts(episodes):
    kept = choose(episodes, SftConfig(workflow="x", threshold=0.5), (), SftCounts())
    assert 0 < len(kept) < 20
    assert min(episode.score or 0 for episode in kept) >= 0.5


def test_scores_that_are_truth_still_have_to_be_1():
    voting = make_workflow("voting_v0", "math", level=1)
    played = play_scripted("scripted", voting, 0.6, ScriptedPlay("train", 20, 1, 0))
    kept = choose(played, SftConfig(workflow="x"), (), SftCounts())
    assert 0 < len(kept) < 20
    assert {episode.score for episode in kept} == {1.0}
    assert not any(episode.pays for episode in played)
