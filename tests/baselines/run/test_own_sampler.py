"""One's own sampler over the AEC API, with our advantages, learner, run directory and report."""

from collections.abc import Callable, Iterator

import pytest
import torch

from flowzoo import voting_v0
from flowzoo.agents.pocket import load
from flowzoo.baselines.advantages.compute import compute
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.report.write import write_report
from flowzoo.baselines.run.directory import RunDirectory
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.metrics import evaluation_metrics, role_metrics
from flowzoo.envs import EpisodeRecord, SampledReply

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
