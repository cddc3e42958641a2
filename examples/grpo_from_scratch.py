"""GRPO from scratch, one model in all roles; arguments: STEPS PROBLEMS SAMPLES HELD_OUT."""

import sys

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from flowzoo import voting_v0
from flowzoo.agents.pocket import pocket_path  # any chat model of transformers will do

TOKENS, LR, CLIP, MINIBATCHES = 64, 3e-4, 0.2, 4


def sample(model, tokenizer, chats):
    """A reply to each chat, as pairs of prompt ids and reply ids (its end token included)."""
    asked = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    prompts = tokenizer(asked, add_special_tokens=False, padding=True, return_tensors="pt")
    ids = model.generate(**prompts, do_sample=True, max_new_tokens=TOKENS)
    replies = ids[:, prompts.input_ids.shape[1] :]
    lengths = (replies == tokenizer.eos_token_id).cumsum(1).eq(0).sum(1) + 1
    rows = zip(prompts.input_ids, prompts.attention_mask.bool(), replies, lengths, strict=True)
    return [(prompt[mask], reply[:length]) for prompt, mask, reply, length in rows]


def play(model, tokenizer, split, indices):
    """One episode per problem, side by side: calls `((problem, agent), prompt, reply, reward)`."""
    envs, calls = [voting_v0.env(task="math", split=split) for _ in indices], []
    for env, index in zip(envs, indices, strict=True):
        env.reset(options={"index": index})
    while live := [n for n, env in enumerate(envs) if not env.last()[2]]:
        rows = sample(model, tokenizer, [envs[n].last()[0]["messages"] for n in live])
        for n, (prompt, reply) in zip(live, rows, strict=True):
            calls.append((n, envs[n].agent_selection, prompt, reply))
            envs[n].step(tokenizer.decode(reply, skip_special_tokens=True))
    paid = [env.rewards for env in envs]  # of the last step, which pays everyone
    return [((indices[n], agent), ids, said, paid[n][agent]) for n, agent, ids, said in calls]


def log_probs(model, rows):
    """Of every token but the first, [rows, length - 1], and which of them are the reply's."""
    ids = pad_sequence([torch.cat(row[:2]) for row in rows], batch_first=True)
    logps = model(ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    place = torch.arange(1, ids.shape[1])
    return logps, torch.stack([(len(p) <= place) & (place < len(p) + len(r)) for p, r, _ in rows])


def learn(model, optimizer, calls):
    """An optimiser step per minibatch: clipped ratios times advantages within (problem, agent)."""
    paid = {key: torch.tensor([c[3] for c in calls if c[0] == key]) for key, *_ in calls}
    rows = [(p, r, (reward - paid[k].mean()) / (paid[k].std() + 1e-4)) for k, p, r, reward in calls]
    order = torch.randperm(len(rows)).tolist()
    batches = [[rows[i] for i in order[start::MINIBATCHES]] for start in range(MINIBATCHES)]
    with torch.no_grad():
        before = [log_probs(model, batch)[0] for batch in batches]
    for batch, old in zip(batches, before, strict=True):
        new, spans = log_probs(model, batch)
        ratio, advantage = (new - old).exp(), torch.stack([row[2] for row in batch])[:, None]
        gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        optimizer.zero_grad()
        (-((gain * spans).sum(1) / spans.sum(1)).mean()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


if __name__ == "__main__":
    steps, problems, samples, held_out = map(int, sys.argv[1:] or (30, 8, 8, 200))
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(pocket_path("math"), padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(pocket_path("math"), dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    for step in range(steps + 1):
        if step in (0, steps):
            paid = [call[3] for call in play(model, tokenizer, "validation", range(held_out))]
            print(f"step {step}, held out: {sum(paid) / len(paid):.3f}", flush=True)
        if step < steps:
            drawn = [step * problems + number for number in range(problems)] * samples
            calls = play(model, tokenizer, "train", drawn)
            print(f"step {step}: {sum(call[3] for call in calls) / len(calls):.3f}", flush=True)
            learn(model, optimizer, calls)
