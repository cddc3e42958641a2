import asyncio
import gc
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GPT2LMHeadModel,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from flowzoo.agents.hf import decode
from flowzoo.agents.hf.policy import TransformersPolicy, micro_batches
from flowzoo.agents.policy import Completion, Policy, Request, Sampling
from flowzoo.errors import FlowzooError, UsageError

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    "{% endif %}"
)
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}  # fmt: skip
WORDS = ["seven", "eight", "apples", "how many", "add", "π ≈ 3", "日本", "🙂", "minus", "answer"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|im_end|>"
    )
    wrapped.chat_template = TEMPLATE
    return wrapped


def build(tokenizer: Any, spread: float = 0.25, **config: Any) -> Any:
    torch.manual_seed(0)
    shape = {**SIZES, "num_attention_heads": 4, "head_dim": 32, "initializer_range": spread}
    shape |= {"tie_word_embeddings": False, "eos_token_id": tokenizer.eos_token_id}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), **shape, **config)).eval()


@pytest.fixture(scope="module")
def model(tokenizer: PreTrainedTokenizerFast) -> Any:
    return build(tokenizer)


@pytest.fixture
def start(model: Any, tokenizer: Any) -> Callable[..., TransformersPolicy]:
    """Makes a policy of the small model; `options` are those of its sampling."""

    def start(**options: Any) -> TransformersPolicy:
        return TransformersPolicy(model, tokenizer, sampling=Sampling(**options))

    return start


def ask(*key: str | int, text: str = "", **fields: Any) -> Request:
    rng = random.Random(str(key))
    content = text or " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 60)))
    messages = [{"role": "user", "content": content}]
    return Request(key=key, agent="generator_0", role="generator", messages=messages, **fields)


def answers(policy: TransformersPolicy, requests: Sequence[Request]) -> list[Completion]:
    return asyncio.run(policy.generate(requests))


def full_logps(model: Any, done: Completion, temperature: float) -> list[float]:
    """By one forward pass without cache, padding or batch."""
    ids = torch.tensor([[*done.prompt_ids, *done.output_ids]])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0].float() / temperature
    steps = logits.log_softmax(-1)[len(done.prompt_ids) - 1 : -1]
    return steps.gather(1, torch.tensor(done.output_ids)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logps_equal_a_full_forward_for_every_row_of_a_ragged_batch(model, start, temperature):
    policy = start(temperature=temperature, max_tokens=90)
    done = answers(policy, [ask(i // 2, i) for i in range(24)] + [ask("same", 0)] * 2)
    assert len({len(row.prompt_ids) for row in done}) > 5
    assert {row.finish for row in done} == {"stop", "length"}
    for row in done:
        assert list(row.logps) == pytest.approx(full_logps(model, row, temperature), abs=1e-4)


@pytest.mark.usual(1)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_draws_the_same_tokens_in_any_batch(model, tokenizer, temperature):
    sampling = Sampling(temperature=temperature, max_tokens=24)
    policy = TransformersPolicy(model, tokenizer, sampling=sampling)
    small = TransformersPolicy(model, tokenizer, sampling=sampling, max_batch=3)
    requests = [ask("p", i // 4, i % 4) for i in range(16)]
    together = answers(policy, requests)
    alone = [answers(policy, [request])[0] for request in requests]
    for other in (alone, answers(small, requests), answers(policy, requests[::-1])[::-1]):
        assert [row.output_ids for row in other] == [row.output_ids for row in together]
        for item, two in zip(other, together, strict=True):
            assert item.logps == pytest.approx(two.logps, abs=1e-4)


def test_two_runs_are_equal_exactly_whatever_the_order(model, tokenizer):
    policy = TransformersPolicy(model, tokenizer, sampling=Sampling(max_tokens=16), max_batch=5)
    requests = [ask(i) for i in range(12)]
    first = answers(policy, requests)
    assert answers(policy, requests) == first
    assert answers(policy, requests[::-1])[::-1] == first
    assert len({row.output_ids for row in first}) == 12


def test_prompts_read_in_parts_give_the_same_floats(model, monkeypatch):
    """In the order of their lengths, without the pads of a whole part, some of them twice."""
    rng = random.Random(0)
    lengths = [rng.choice((3, 9, 40, 70)) for _ in range(30)]
    prompts = [tuple(rng.choices(range(2, 200), k=length)) for length in lengths]
    rows = [decode.DecodeRequest(prompts[n % 30], n, 5 + n % 9) for n in range(36)]
    read: list[tuple[int, ...]] = []
    hook = model.model.embed_tokens.register_forward_pre_hook(
        lambda _, given: read.append(tuple(given[0].shape))
    )
    results = []
    for at_once, parts in ((1 << 20, 1), (1 << 10, 3)):
        monkeypatch.setattr(decode, "_READ_AT_ONCE", at_once // torch.get_num_threads())
        read.clear()
        results.append(decode.decode(model, rows, Sampling(), frozenset({1}), lambda: False))
        assert sum(count for count, _ in read[:parts]) == 30
        assert read[parts][1] == 1
    hook.remove()
    assert read[0][1] < read[2][1] == 70
    assert results[0] == results[1]


def test_different_keys_sample_one_prompt_differently_and_read_it_once(start):
    policy = start(max_tokens=8)
    done = answers(policy, [ask("k", i, text="seven add eight") for i in range(16)])
    assert len({row.output_ids for row in done}) == 16
    assert policy.stats.read_tokens == len(done[0].prompt_ids)
    assert policy.stats.prompt_tokens == 16 * policy.stats.read_tokens
    assert policy.stats.output_tokens == sum(len(row.output_ids) for row in done)


def test_at_temperature_0_tokens_are_the_likeliest_with_logps_at_temperature_1(model, start):
    policy = start(temperature=0.0, max_tokens=12, top_k=1)
    (done,) = answers(policy, [ask("greedy")])
    ids = list(done.prompt_ids)
    for token in done.output_ids:
        with torch.no_grad():
            assert model(torch.tensor([ids])).logits[0, -1].argmax() == token
        ids.append(token)
    assert list(done.logps) == pytest.approx(full_logps(model, done, 1.0), abs=1e-4)
    assert min(done.logps) < -0.05


def test_the_end_token_is_recorded_once_though_it_is_also_the_pad(tokenizer, start):
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    policy = start(max_tokens=200)
    done = answers(policy, [ask("e", i) for i in range(16)])
    ended = [row for row in done if row.finish == "stop"]
    assert ended
    for row in ended:
        assert row.output_ids.index(tokenizer.eos_token_id) == len(row.output_ids) - 1
        assert len(row.logps) == len(row.output_ids)
        assert "<|im_end|>" not in row.text
    for row in done:
        if row.finish == "length":
            assert len(row.output_ids) == 200
            assert tokenizer.eos_token_id not in row.output_ids


def test_any_of_several_end_tokens_stops(model, tokenizer, start):
    probe = start(max_tokens=12)
    request = ask("stop", 4)
    (free,) = answers(probe, [request])
    other = free.output_ids[5]
    before = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, other]
    try:
        policy = start(max_tokens=12)
        (done,) = answers(policy, [request])
    finally:
        model.generation_config.eos_token_id = before
    cut = free.output_ids.index(other) + 1
    assert done.output_ids == free.output_ids[:cut]
    assert done.finish == "stop"
    assert done.text == tokenizer.decode(free.output_ids[: cut - 1], skip_special_tokens=True)


def test_max_tokens_of_policy_and_request(start):
    policy = start(max_tokens=6)
    caps = [None, 1, 3, 50]
    done = answers(policy, [ask("cap", 4, max_tokens=cap) for cap in caps])
    longest = done[0].output_ids
    assert len(longest) == 6
    assert [row.output_ids for row in done] == [longest, longest[:1], longest[:3], longest]
    with pytest.raises(UsageError, match="at least 1, got 0"):
        answers(policy, [ask("cap", max_tokens=0)])


def test_sliding_window_layers_and_equal_heads_agree_with_a_full_forward(tokenizer):
    torch.manual_seed(1)
    window = {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}
    shape = {**SIZES, **window, "num_attention_heads": 2, "initializer_range": 0.2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), **shape)).eval()
    assert model.config.layer_types == ["full_attention", "sliding_attention"]
    policy = TransformersPolicy(model, tokenizer, sampling=Sampling(max_tokens=30))
    for row in answers(policy, [ask("window", i // 2, i % 2) for i in range(8)]):
        assert list(row.logps) == pytest.approx(full_logps(model, row, 1.0), abs=1e-4)


@pytest.mark.parametrize("family", [GPT2LMHeadModel, OPTForCausalLM])
def test_rows_that_end_early_do_not_leave_a_table_of_positions(family):
    torch.manual_seed(0)
    sizes = {
        GPT2LMHeadModel: {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2},
        OPTForCausalLM: {
            "max_position_embeddings": 64, "hidden_size": 32, "word_embed_proj_dim": 32,
            "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        },
    }  # fmt: skip
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    config = family.config_class(vocab_size=40, **sizes[family], **ends)
    model = family(config).eval()
    rows = [decode.DecodeRequest((1,) * 60, 0, cap=4)]
    rows += [decode.DecodeRequest((2, 3, key), key, cap=60) for key in range(1, 6)]
    outputs, _ = decode.decode(model, rows, Sampling(), frozenset(), lambda: False)
    for row, output in zip(rows, outputs, strict=True):
        done = Completion("", row.prompt, output.tokens, output.logps)
        assert len(output.tokens) == row.cap
        assert output.logps == pytest.approx(full_logps(model, done, 1.0), abs=1e-4)


def test_hostile_messages_are_answered(tokenizer, start):
    policy = start(max_tokens=4)
    texts = ["\ud800 lone", "\x00", "<|im_end|>", "‮right to left", "9" * 5000, " "]
    done = answers(policy, [ask("hostile", i, text=text) for i, text in enumerate(texts)])
    assert [len(row.output_ids) > 0 for row in done] == [True] * len(texts)
    assert "�" in tokenizer.decode(done[0].prompt_ids)


def test_unicode_survives_prompt_and_text(tokenizer, start):
    policy = start(max_tokens=40)
    (done,) = answers(policy, [ask("u", text="π ≈ 3, 日本 🙂")])
    assert "π ≈ 3, 日本 🙂" in tokenizer.decode(done.prompt_ids)
    body = done.output_ids[:-1] if done.finish == "stop" else done.output_ids
    assert done.text == tokenizer.decode(body, skip_special_tokens=True)
    assert policy._chat.decode(tokenizer("日本 🙂")["input_ids"]) == "日本 🙂"


def test_a_long_prompt_loses_its_middle_and_is_counted(model, tokenizer, caplog):
    policy = TransformersPolicy(
        model, tokenizer, sampling=Sampling(max_tokens=10), max_context=60, name="short"
    )
    text = "first " + "eight " * 300 + "last"
    full = TransformersPolicy(model, tokenizer)._chat.encode([ask("l", text=text).messages])[0].ids
    done = answers(policy, [ask("l", i, text=text) for i in range(2)] + [ask("s", text="add")])
    assert 48 <= len(done[0].prompt_ids) <= 50
    assert done[0].shortened == len(full) - len(done[0].prompt_ids)
    read = tokenizer.decode(done[0].prompt_ids)
    for part in ("first eight", "[...]", "eight last"):
        assert part in read
    assert (done[2].shortened, policy.stats.shortened) == (0, 2)
    assert [record.args[0] for record in caplog.records if isinstance(record.args, tuple)] == [
        "short"
    ]


def test_template_settings_reach_the_template(model, tokenizer):
    policy = TransformersPolicy(model, tokenizer, sampling=Sampling(max_tokens=1), thinking=False)
    (done,) = answers(policy, [ask("t", text="add")])
    assert tokenizer.decode(done.prompt_ids).endswith("assistant\n<think></think>")


def test_the_model_is_given_back_as_it_was_and_can_be_trained(tokenizer):
    model = build(tokenizer).train()
    policy = TransformersPolicy(model, tokenizer, sampling=Sampling(max_tokens=4))
    before = answers(policy, [ask("w", i) for i in range(4)])
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    loss = model(torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss
    loss.backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.ones_like(weight) * 0.05 * weight.grad.sign())
    after = answers(policy, [ask("w", i) for i in range(4)])
    assert [row.logps for row in after] != [row.logps for row in before]


@pytest.mark.full
def test_logits_that_are_not_finite_are_an_error(tokenizer):
    model = build(tokenizer)
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    for temperature in (0.0, 1.0):
        policy = TransformersPolicy(model, tokenizer, sampling=Sampling(temperature=temperature))
        with pytest.raises(FlowzooError, match="not finite"):
            answers(policy, [ask("nan")])


async def test_the_loop_runs_on_and_cancelling_stops_the_model(model, start):
    policy = start(max_tokens=400)
    policy._stop_ids = frozenset({-1})  # nothing ends by itself
    request = [ask("c", i, text="add") for i in range(64)]
    loop = asyncio.get_running_loop()
    reached, go_on = asyncio.Event(), threading.Event()
    steps: list[bool] = []

    def at_step(*_: Any) -> None:
        steps.append(True)
        if len(steps) == 3:
            loop.call_soon_threadsafe(reached.set)
            assert go_on.wait(60)  # which only a loop that runs on can let it

    hook = model.register_forward_pre_hook(at_step)
    try:
        task = asyncio.create_task(policy.generate(request))
        await asyncio.wait_for(reached.wait(), 60)
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()  # it waits for the model, which is at work
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    finally:
        go_on.set()
        hook.remove()
    assert len(steps) == 3  # of 400
    assert policy.stats.output_tokens == 0
    policy.sampling = Sampling(max_tokens=2)
    assert len(await policy.generate([ask("d")])) == 1
    await policy.close()


async def test_a_second_cancellation_leaves_no_error_to_report(model, start, caplog):
    policy = start(max_tokens=400)
    policy._stop_ids = frozenset({-1})  # nothing ends by itself
    loop, reached, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def at_step(*_: Any) -> None:
        loop.call_soon_threadsafe(reached.set)
        assert go_on.wait(60)

    hook = model.register_forward_pre_hook(at_step)
    try:
        task = asyncio.create_task(policy.generate([ask("c", text="add")]))
        await asyncio.wait_for(reached.wait(), 60)
        for _ in range(2):  # as at Ctrl-C, when the loop's end cancels what was cancelled
            task.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
    finally:
        go_on.set()
        hook.remove()
    await loop.run_in_executor(policy._thread, gc.collect)  # after the model's work
    await asyncio.sleep(0.1)
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]
    await policy.close()


def test_micro_batches_depend_on_the_set_of_requests_only():
    requests = [ask("a", i) for i in range(7)] + [ask(3, "b")]
    prompts = [(1,) * (10 + 40 * (i % 3)) for i in range(8)]
    results = [
        [requests[i].key for i in part] for part in micro_batches(requests, prompts, max_rows=3)
    ]
    mirrored = requests[::-1]
    again = [
        [mirrored[i].key for i in part]
        for part in micro_batches(mirrored, prompts[::-1], max_rows=3)
    ]
    assert results == again
    assert [len(part) for part in results] == [3, 3, 2]


def test_saved_models_load_by_path(model, tokenizer, tmp_path):
    model.save_pretrained(tmp_path / "mini")
    tokenizer.save_pretrained(tmp_path / "mini")
    sampling = Sampling(max_tokens=8)
    loaded = TransformersPolicy.from_pretrained(tmp_path / "mini", sampling=sampling)
    assert loaded.name == "mini"
    assert isinstance(loaded, Policy)
    given = TransformersPolicy(model, tokenizer, sampling=sampling)
    assert answers(loaded, [ask("x")])[0].output_ids == answers(given, [ask("x")])[0].output_ids


def test_wrong_set_ups_are_explained(model, tokenizer, tmp_path):
    with pytest.raises(UsageError, match=r"cannot load a model from .*nowhere"):
        TransformersPolicy.from_pretrained(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="leaves no room"):
        TransformersPolicy(model, tokenizer, max_context=64)
    with pytest.raises(UsageError, match="max_batch"):
        TransformersPolicy(model, tokenizer, max_batch=0)
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    with pytest.raises(UsageError, match="no chat template"):
        TransformersPolicy(model, bare)
