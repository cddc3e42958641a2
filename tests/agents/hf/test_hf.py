"""The transformers engine: sampling, checks at a model's start, settings of the process."""

import asyncio
import gc
import platform
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import (
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from flowzoo.agents.hf import decode
from flowzoo.agents.hf.decode import check_decoding, draw, near_borders, uniforms
from flowzoo.agents.hf.policy import TransformersPolicy, micro_batches
from flowzoo.agents.policy import Completion, Policy, Request, Sampling
from flowzoo.baselines.learner.hidden_states import fitting_layout
from flowzoo.errors import FlowzooError, UsageError
from flowzoo.seeding import key_int
from tests.processes import run_python

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


def test_a_long_prompt_loses_its_middle_and_is_counted(model, tokenizer, caplog):
    policy = TransformersPolicy(model, tokenizer, sampling=Sampling(max_tokens=10), name="short")
    policy._context = 60
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
        TransformersPolicy(model, tokenizer, sampling=Sampling(max_tokens=512))
    with pytest.raises(UsageError, match="max_batch"):
        TransformersPolicy(model, tokenizer, max_batch=0)
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    with pytest.raises(UsageError, match="no chat template"):
        TransformersPolicy(model, bare)


LOGITS = torch.tensor([1.0, 0.0, 2.0, -1.0, 0.5, -3.0])


def test_uniforms_are_the_published_generator():
    # First outputs of splitmix64 with state 1234567, as its reference code prints them.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    key = np.array([1234567], dtype=np.uint64)
    for step, bits in enumerate(published):
        assert uniforms(key, step)[0] == (bits >> 11) * 2.0**-53


def test_uniforms_are_even_and_free_of_correlation():
    keys = np.array([key_int("k", i) for i in range(400)], dtype=np.uint64)
    table = np.stack([uniforms(keys, step) for step in range(100)])
    assert 0.0 <= table.min() < 0.001
    assert 0.999 < table.max() < 1.0
    assert np.histogram(table, 10, (0, 1))[0] == pytest.approx([4000] * 10, rel=0.06)
    for item, other in ((table[1:], table[:-1]), (table[:, 1:], table[:, :-1])):
        assert abs(np.corrcoef(item.ravel(), other.ravel())[0, 1]) < 0.02


def frequencies(sampling: Sampling, count: int = 20000) -> tuple[np.ndarray, dict[int, float]]:
    noise = uniforms(np.array([key_int("f", i) for i in range(count)], dtype=np.uint64), 0)
    tokens, logps = draw(LOGITS.expand(count, -1), noise, sampling)
    message = dict(zip(tokens.tolist(), logps.tolist(), strict=True))
    return np.bincount(tokens.numpy(), minlength=6) / count, message


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        (Sampling(), [0, 1, 2, 3, 4, 5]),
        (Sampling(temperature=0.5), [0, 1, 2, 3, 4, 5]),
        (Sampling(top_k=3), [0, 2, 4]),
        (Sampling(top_k=50), [0, 1, 2, 3, 4, 5]),
        # Probabilities .548 .202 .122 .074 .027 .004 (sorted): .548 + .202 < .8 <= .872
        (Sampling(top_p=0.8), [0, 2, 4]),
        (Sampling(top_p=0.1), [2]),
        # Among the best two the shares are .731 and .269: top_p works on what top_k has left.
        (Sampling(top_k=2, top_p=0.73), [2]),
        (Sampling(top_k=4, top_p=0.9, temperature=2.0), [0, 1, 2, 4]),
    ],
)
def test_frequencies_and_logps_are_those_of_the_cut_distribution(sampling, allowed):
    expected = np.zeros(6)
    weights = np.exp(LOGITS.numpy()[allowed].astype(float) / sampling.temperature)
    expected[allowed] = weights / weights.sum()
    results, message = frequencies(sampling)
    assert results == pytest.approx(expected, abs=4.5 * 0.5 / 20000**0.5)
    assert set(message) <= set(allowed)
    for token, logp in message.items():
        assert logp == pytest.approx(np.log(expected[token]), abs=1e-5)


@pytest.mark.parametrize("sampling", [Sampling(top_k=2), Sampling(top_p=0.6), Sampling()])
def test_noise_at_the_ends_stays_inside_the_distribution(sampling):
    logits = torch.tensor([[float("-inf"), 0.0, 1.0, float("-inf")]] * 2)
    noise = np.array([0.0, 1.0 - 2.0**-53])
    tokens, logps = draw(logits, noise, sampling)
    assert set(tokens.tolist()) <= {1, 2}
    assert torch.isfinite(logps).all()


def test_tokens_the_model_rules_out_do_not_shift_the_others():
    logits = torch.tensor([float("-inf"), 0.0, 1.0, float("-inf")]).expand(2000, -1)
    tokens, _ = draw(logits, (np.arange(2000) + 0.5) / 2000, Sampling())
    assert np.bincount(tokens.numpy()) == pytest.approx([0, 538, 1462], abs=1)


def test_ties_are_cut_by_token_id():
    noise = np.linspace(0.0, 0.999, 200)
    tokens, _ = draw(torch.zeros(200, 9), noise, Sampling(top_k=3))
    assert set(tokens.tolist()) == {0, 1, 2}


def test_half_precision_logits_give_float32_logps():
    for temperature in (0.0, 1.0):
        _, logps = draw(LOGITS[None].bfloat16(), np.array([0.5]), Sampling(temperature=temperature))
        assert logps.dtype == torch.float32


BORDER = 40


class RopeOfTheLongest(nn.Module):
    """Rope whose positions double for the whole batch if one row is longer than the border."""

    def __init__(self, rope: nn.Module) -> None:
        super().__init__()
        self.rope = rope

    def forward(self, x: Tensor, position_ids: Tensor) -> Any:
        factor = 2 if position_ids.max() >= BORDER else 1
        return self.rope(x, position_ids * factor)


def llama(**fields: Any) -> LlamaForCausalLM:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, initializer_range=0.3,
        max_position_embeddings=128, **fields,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def with_other_rope() -> LlamaForCausalLM:
    model = llama(original_max_position_embeddings=BORDER)
    model.model.rotary_emb = RopeOfTheLongest(model.model.rotary_emb)  # type: ignore[assignment]
    return model


def with_window_of_the_cache() -> LlamaForCausalLM:
    """The cache obeys the window of the configuration, and the layers of Llama do not."""
    return llama(sliding_window=BORDER)


@pytest.mark.parametrize("share_prefixes", [False, True])
@pytest.mark.parametrize("make", [with_other_rope, with_window_of_the_cache])
def test_a_model_that_is_another_beyond_its_border_is_not_sampled(
    make: Callable[[], Any], share_prefixes: bool
):
    model = make()
    assert near_borders(model) == [BORDER]
    with pytest.raises(UsageError, match="in batches otherwise than row by row"):
        check_decoding(model, share_prefixes)


def test_a_model_that_is_another_beyond_its_border_is_not_packed():
    with pytest.raises(UsageError, match="not those of single rows"):
        fitting_layout(with_other_rope(), "packed")


def test_a_border_that_would_take_a_cpu_long_is_named(caplog: pytest.LogCaptureFixture):
    model = llama(sliding_window=BORDER)
    model.config.max_position_embeddings = 2**20
    model.config.sliding_window = 2**19
    check_decoding(model)
    assert "rows of 524288 tokens and more are not compared" in caplog.text


FAULTS = """
import resource, torch
from flowzoo.agents.hf.process import prepare_process
prepare_process(1)
assert torch.get_num_threads() == 1
prepare_process(0)
assert torch.get_num_threads() == 1
for _ in range(16):  # until the cache of small blocks, which keep large ones apart, is full
    torch.zeros(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    torch.zeros(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
"""Page faults of tensors of 64 MiB, of which some were freed before."""

THREADS = """
import threading, torch
from benchmarks.harness.memory import status_bytes
from flowzoo.agents.hf.process import prepare_process
prepare_process(1)
thread = threading.Thread(target=lambda: [torch.ones(2**20) for _ in range(16)])
thread.start()
thread.join()
before = status_bytes("VmRSS")
tensors = [torch.ones(2**20) for _ in range(16)]
print(status_bytes("VmRSS") - before)
"""
"""Bytes that 64 MiB add in one thread after another thread has freed as many."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_freed_memory_is_kept_unless_the_environment_says_otherwise():
    assert int(run_python(FAULTS)) < 1000
    assert int(run_python(FAULTS, MALLOC_TRIM_THRESHOLD_="131072")) > 10_000
    tunables = "glibc.malloc.trim_threshold=131072"
    assert int(run_python(FAULTS, GLIBC_TUNABLES=tunables)) > 10_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_a_thread_uses_what_another_has_freed():
    assert int(run_python(THREADS)) < 2**24
    assert int(run_python(THREADS, MALLOC_ARENA_MAX="2", MALLOC_MMAP_MAX_="0")) > 2**25
