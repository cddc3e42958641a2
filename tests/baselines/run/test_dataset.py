"""Recorded episodes as Parquet tables, and a sampler of one's own over the AEC API."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from flowzoo import voting_v0
from flowzoo.agents.judge import JudgePolicy
from flowzoo.agents.pocket import load
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.specs import make_policy
from flowzoo.baselines.advantages.compute import compute
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.report.transcripts import message_text
from flowzoo.baselines.report.write import write_report
from flowzoo.baselines.run.dataset import EPISODES, REPLIES, table_of, write_dataset
from flowzoo.baselines.run.directory import RunDirectory, plain
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.metrics import evaluation_metrics, role_metrics
from flowzoo.envs import EpisodeRecord, SampledReply, make_workflow
from flowzoo.envs.tasks.task import get_problem
from flowzoo.errors import MissingExtraError, UsageError

PAGE = Path(__file__).parents[3] / "docs" / "episodes.md"


@pytest.fixture(scope="module")
def records():
    workflow = make_workflow("voting_v0")
    policy_map = PolicyMap.shared(
        make_policy("scripted:0.5", oracle=workflow), workflow.role_counts()
    )
    jobs = [EpisodeJob(get_problem(workflow.task, index, "validation")) for index in range(3)]
    return Rollout(workflow, policy_map, seed=0).run(jobs)


@pytest.fixture
def sources(records, tmp_path):
    """A folder of an evaluation, and one of a run, with a reply that UTF-8 cannot hold."""
    evaluation, run = tmp_path / "ev", tmp_path / "run"
    evaluation.mkdir()
    lines = [json.dumps(record.to_json()) for record in records]
    (evaluation / "episodes.jsonl").write_text("\n".join(lines) + "\n")
    (run / "transcripts").mkdir(parents=True)
    for kind, step in (("train", 10), ("eval", 0)):
        rows = [plain(record) for record in records[:1]]
        rows[0]["calls"][0]["reply"] = "half \ud83d"
        path = run / "transcripts" / f"{kind}-{step:06d}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [evaluation, run]


def test_every_reply_and_every_episode_is_a_row(sources, records, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "set"
    assert write_dataset(sources, out) == (5, 20)
    replies = parquet.read_table(out / "replies" / "train.parquet").to_pylist()
    episodes = parquet.read_table(out / "episodes" / "train.parquet").to_pylist()
    assert [list(replies[0]), list(episodes[0])] == [
        [column.name for column in columns] for columns in (REPLIES, EPISODES)
    ]
    places = [(row["source"], row["purpose"], row["step"]) for row in episodes]
    assert places == [("ev", "eval", None)] * 3 + [("run", "eval", 0), ("run", "train", 10)]
    calls = [call for record in records for call in record.calls]
    for row, call in zip(replies[:12], calls, strict=True):
        assert row["prompt"] == list(call.messages)
        assert row["completion"] == [{"role": "assistant", "content": call.reply}]
        assert (row["reward"], row["role_score"]) == (call.reward, call.role_score)
        assert row["team"] == call.parts["team"]
    assert [row["score"] for row in episodes[:3]] == [record.score for record in records]
    assert json.loads(episodes[0]["facts"]) == records[0].facts
    assert replies[12]["completion"][0]["content"] == "half \\ud83d"
    assert (out / "README.md").read_text().startswith("---\nconfigs:\n- config_name: replies\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ev", "run", "set"]


def test_calls_of_tools_are_in_every_form_of_a_record(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    workflow = make_workflow("reasoner_python_v0")
    policy_map = PolicyMap.shared(
        make_policy("scripted:1", oracle=workflow), workflow.role_counts()
    )
    (record,) = Rollout(workflow, policy_map, seed=0).run([EpisodeJob(workflow.task.problem(0))])
    (tmp_path / "ev").mkdir()
    (tmp_path / "ev/episodes.jsonl").write_text(json.dumps(record.to_json()) + "\n")
    write_dataset([tmp_path / "ev"], tmp_path / "set")
    first, second = parquet.read_table(tmp_path / "set/replies/train.parquet").to_pylist()[:2]
    messages = json.loads(second["tool_messages"])
    assert messages == list(record.calls[1].messages)
    assert json.loads(first["tools"]) == list(record.calls[0].tools)
    assert first["tool_messages"] is None
    (called,) = [message for message in messages if "tool_calls" in message]
    code = called["tool_calls"][0]["function"]["arguments"]["code"]
    assert json.dumps(code) in message_text(called)
    assert "<tool_call>" in message_text(called)
    # Prompts that differ in a call alone are different questions to a judge.
    other = json.loads(second["tool_messages"])
    calls = next(message["tool_calls"] for message in other if "tool_calls" in message)
    calls[0]["function"]["arguments"]["code"] += "1"
    kept = JudgePolicy("judge", lambda: None, cache=tmp_path / "replies")
    key = kept._key(messages, None, None)
    assert kept._key(json.loads(second["tool_messages"]), None, None) == key
    assert kept._key(other, None, None) != key


@pytest.mark.parametrize("streaming", [False, True])
def test_datasets_loads_both_tables_with_the_documented_types(
    sources, tmp_path, monkeypatch, streaming
):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    out = tmp_path / "set"
    write_dataset(sources, out)
    of_kind = {"text": "string", "whole": "int64", "number": "float64", "flag": "bool"}
    for name, columns, count in (("replies", REPLIES, 20), ("episodes", EPISODES, 5)):
        table = datasets.load_dataset(str(out), name, split="train", streaming=streaming)
        message = {"role": datasets.Value("string"), "content": datasets.Value("string")}
        assert dict(table.features) == {
            column.name: datasets.Value(of_kind[column.kind])
            if column.kind in of_kind
            else datasets.List(message)
            for column in columns
        }
        rows = list(table)
        assert len(rows) == count
        assert (
            rows
            == pytest.importorskip("pyarrow.parquet")
            .read_table(out / name / "train.parquet")
            .to_pylist()
        )
    plain_parquet = datasets.load_dataset(
        "parquet", data_files=str(out / "episodes" / "*.parquet"), split="train"
    )
    assert [row["score"] for row in plain_parquet] == [row["score"] for row in rows]
    assert len(datasets.load_dataset(str(out), split="train")) == 20  # the replies, by default


def test_folders_of_one_name_are_told_apart_by_their_paths(sources, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    folders = [tmp_path / cell / "seed-0" for cell in ("one", "two")]
    for folder in folders:
        folder.mkdir(parents=True)
        text = (sources[0] / "episodes.jsonl").read_text()
        (folder / "episodes.jsonl").write_text(text)
    write_dataset(folders, tmp_path / "set")
    rows = parquet.read_table(tmp_path / "set" / "episodes" / "train.parquet").to_pylist()
    assert [row["source"] for row in rows] == ["one/seed-0"] * 3 + ["two/seed-0"] * 3
    assert len({(row["source"], row["episode"]) for row in rows}) == len(rows)
    with pytest.raises(UsageError, match="a folder is named twice among"):
        write_dataset([folders[0], folders[0]], tmp_path / "again")


def test_nothing_is_written_over_and_nothing_half(sources, tmp_path, monkeypatch):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    monkeypatch.chdir(tmp_path / "empty")
    for taken in (tmp_path / "full", tmp_path / "link", Path()):
        with pytest.raises(UsageError, match="exists already: name a new folder"):
            write_dataset(sources, taken)
    with pytest.raises(UsageError, match="holds no episodes: expected"):
        write_dataset([tmp_path / "full"], tmp_path / "set")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"writing a data set needs the module `pyarrow`"):
        write_dataset(sources, tmp_path / "set")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "empty", "ev", "full", "link", "run"
    ]  # fmt: skip


def test_the_page_has_the_columns():
    text = PAGE.read_text(encoding="utf-8")
    for columns in (REPLIES, EPISODES):
        assert "\n".join(table_of(columns)) in text


Sampler = Callable[[list[dict[str, str]]], SampledReply]


def sampler(model, tokenizer) -> Sampler:
    """Token by token, without any code of ours."""

    def sample(messages: list[dict[str, str]]) -> SampledReply:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids, logps = list(prompt), []
        with torch.no_grad():
            while len(logps) < 24 and (not logps or ids[-1] != tokenizer.eos_token_id):
                row = model(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)
                ids.append(int(torch.multinomial(row.exp(), 1)))
                logps.append(row[ids[-1]])
        said = ids[len(prompt) :]
        reply = tokenizer.decode(said, skip_special_tokens=True)
        finish = "stop" if said[-1] == tokenizer.eos_token_id else "length"
        return SampledReply(
            reply, policy="shared", prompt_ids=prompt, output_ids=said, logps=logps, finish=finish
        )

    return sample


def played(sample: Sampler, split: str, problems: int, samples: int) -> Iterator[EpisodeRecord]:
    env = voting_v0.env(split=split)
    for index in range(problems):
        for number in range(samples):
            env.reset(options={"index": index, "sample": number})
            for _ in env.agent_iter():
                observation, _, terminated, truncated, _ = env.last()
                env.step(None if terminated or truncated else sample(observation["messages"]))
            yield env.record()


@pytest.mark.full
def test_it_trains_and_is_reported(tmp_path):
    torch.manual_seed(0)
    policy = load("math", "xs")
    learner = Learner(policy.model, LearnerConfig(lr=1e-3))
    sample = sampler(policy.model, policy.tokenizer)
    out = tmp_path / "own"
    run = RunDirectory(TrainConfig(steps=1, problems=2, samples=4, out=str(out)), {}, {})
    run.begin(None)
    held_out = list(played(sample, "validation", 1, 1))
    run.save_transcripts("eval", 0, held_out)
    run.log({"step": 0, "tokens/total": 0, **evaluation_metrics(held_out)})

    records = list(played(sample, "train", 2, 4))
    assert len({record.episode for record in records}) == 8
    calls = [call for record in records for call in record.calls]
    found = compute(calls, "grpo", {record.episode: record.score for record in records})
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    learned = learner.update(calls, found.values.tolist())
    # The log-probs of the sampler are those that the learner finds: nothing was tokenized anew.
    assert learned["learn/logp_gap_max"] < 1e-4
    after = policy.model.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    run.save_transcripts("train", 1, records)
    held_out = list(played(sample, "validation", 1, 1))
    run.save_transcripts("eval", 1, held_out)
    learned = {f"{name}/shared": value for name, value in learned.items()}
    run.log({"step": 1, **role_metrics(records), **learned, **evaluation_metrics(held_out)})
    run.close()
    (page, *_) = write_report([out], tmp_path / "page.html")
    assert "voting" in page.read_text(encoding="utf-8")
