import numpy as np
import pytest
import torch

from flowzoo.agents.hf.decode import draw, uniforms
from flowzoo.agents.policy import Sampling
from flowzoo.seeding import key_int

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


def test_a_chi_square_of_the_first_token_over_a_large_vocabulary():
    torch.manual_seed(3)
    logits, count = torch.randn(50), 40000
    noise = uniforms(np.arange(count, dtype=np.uint64) * np.uint64(7919), 5)
    tokens, _ = draw(logits.expand(count, -1), noise, Sampling())
    expected = logits.softmax(-1).double().numpy() * count
    results = np.bincount(tokens.numpy(), minlength=50)
    assert (
        (results - expected) ** 2 / expected
    ).sum() < 85.4  # 99.9 % of chi-square with 49 degrees


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
