"""Wrappers that make arrays of texts: spaces, masks, encoders, copies, and what they refuse."""

import pickle
import warnings
from collections import Counter

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.utils.env_checker import check_env
from pettingzoo.test import api_test, parallel_api_test, seed_test

from flowzoo import voting_v0, writing_pair_v0
from flowzoo.adapters.arrays import (
    BareInfos,
    ByteEncoder,
    Choose,
    Encode,
    HiddenEncoder,
    NgramEncoder,
)
from flowzoo.errors import UsageError
from tests.envs.playing import opened

CANDIDATES = ["\\boxed{1}", "\\boxed{2}", "\\boxed{9}"]
CHAT = [{"role": "user", "content": "1+1é"}, {"role": "assistant", "content": "2"}]


def ballot(**options):
    env = gymnasium.make("flowzoo/Voting-v0", role="aggregator", **options)
    return Choose(Encode(env, NgramEncoder(64)), CANDIDATES)


def voting(mask="info"):
    return Choose(Encode(voting_v0.env(), ByteEncoder(32)), mask=mask)


def pair():
    return BareInfos(Choose(Encode(writing_pair_v0.parallel_env(), NgramEncoder(32))))


@pytest.mark.parametrize("mask", ["info", "observation"])
def test_an_aec_environment_of_arrays_conforms(mask):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of observations that are a Dict
        api_test(voting(mask), num_cycles=30)
    seed_test(lambda: voting(mask), num_cycles=30)
    env = voting(mask)
    space = env.observation_space("generator_0")
    assert isinstance(space, Dict if mask == "observation" else Box)
    assert env.action_space("aggregator_0") == Discrete(len(env.unwrapped.workflow.samples()))


def test_a_parallel_environment_of_arrays_conforms():
    parallel_api_test(pair(), num_cycles=30)
    _, infos = pair().reset(seed=0)
    assert {tuple(info) for info in infos.values()} == {("action_mask",)}


def test_a_gymnasium_environment_of_arrays_conforms():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of wrappers
        check_env(ballot(), skip_render_check=True)
    env = gymnasium.make(ballot().spec)  # its wrappers are in the specification
    assert (env.observation_space, env.action_space) == (NgramEncoder(64).space, Discrete(3))
    assert env.reset(seed=3)[0].shape == (64,)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vector_environments_take_arrays(mode):
    wrappers = [lambda env: Choose(Encode(env, ByteEncoder(16)), CANDIDATES)]
    envs = gymnasium.make_vec("flowzoo/Voting-v0", 2, mode, role="aggregator", wrappers=wrappers)
    seen, infos = envs.reset(seed=0)
    assert (seen.shape, seen.dtype) == ((2, 16), np.float32)
    assert infos["action_mask"].tolist() == [[1, 1, 0]] * 2
    rewards = envs.step(np.array([0, 1]))[1]
    assert rewards.shape == (2,)
    envs.close()


def test_a_reply_is_legal_where_the_workflow_reads_it():
    env = ballot()
    _, info = env.reset(seed=0)
    assert info["action_mask"].tolist() == [1, 1, 0]  # there are three candidates, no ninth
    assert env.action_masks().tolist() == [1, 1, 0]
    _, reward, ended, _, info = env.step(np.int64(0))
    assert (reward, ended, info["action_mask"].tolist()) == (1.0, True, [1, 1, 1])
    none = Choose(gymnasium.make("flowzoo/Voting-v0", role="aggregator"), ["?", "\\boxed{7}"])
    assert none.reset(seed=0)[1]["action_mask"].tolist() == [1, 1]  # an agent has an action


def test_the_number_of_a_reply_plays_the_reply():
    numbers, texts = ballot(others="scripted:0.5"), gymnasium.make(
        "flowzoo/Voting-v0", role="aggregator", others="scripted:0.5"
    )  # fmt: skip
    paid = Counter()
    for seed in range(12):
        numbers.reset(seed=seed), texts.reset(seed=seed)
        pair = numbers.step(seed % 3)[1], texts.step(CANDIDATES[seed % 3])[1]
        assert pair[0] == pair[1]
        paid[pair[0]] += 1
    assert set(paid) == {0.0, 1.0}


def test_replies_by_role_or_agent():
    replies = {"generator": ["\\boxed{1}"], "generator_1": ["a", "b"], "aggregator": CANDIDATES}
    env = Choose(voting_v0.env(), replies)
    counts = {agent: int(env.action_space(agent).n) for agent in env.possible_agents}
    assert list(counts.values()) == [1, 2, 1, 3]


@pytest.mark.parametrize("make", [voting, pair, ballot])
def test_a_copy_goes_on_alike(make):
    env = make()
    env.reset(seed=5)
    twin = pickle.loads(pickle.dumps(env))
    seen = []
    for each in (env, twin):
        if make is voting:
            each.step(0)
            seen.append(
                (each.observe(each.agent_selection).tolist(), each.infos["generator_1"]["slot"])
            )
        else:
            action = 0 if make is ballot else dict.fromkeys(each.agents, 0)
            seen.append(str(each.step(action)))
    assert seen[0] == seen[1]


def test_bytes_are_the_last_of_the_texts():
    text = "1+1é\n2".encode()
    assert (ByteEncoder(4)(CHAT) * 255).tolist() == list(text[-4:])
    assert (ByteEncoder(10)(CHAT) * 255).tolist() == [0] * 3 + list(text)
    assert ByteEncoder(3)([]).tolist() == [0, 0, 0]


@pytest.mark.parametrize("n", [1, 3, 8])
def test_ngrams_are_counted_by_their_hash(n):
    text = b"abcabcabx" * 3
    counts = np.zeros(50)
    for start in range(len(text) - n + 1):
        code = int.from_bytes(text[start : start + n], "big")
        counts[((code * 0x9E3779B97F4A7C15) % 2**64 >> 32) % 50] += 1
    got = NgramEncoder(50, n)([{"role": "user", "content": text.decode()}])
    np.testing.assert_allclose(got, counts / np.linalg.norm(counts), rtol=1e-6)
    assert not NgramEncoder(50, n)([]).any()


def test_hidden_states_are_the_models_own():
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from flowzoo.agents.pocket import pocket_path

    encoder = HiddenEncoder()
    tokenizer = AutoTokenizer.from_pretrained(pocket_path())
    model = AutoModelForCausalLM.from_pretrained(pocket_path(), dtype="float32")
    chat = [{"role": "user", "content": "Compute 6*3-5."}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        last = model.base_model(input_ids=ids).last_hidden_state[0, -1]
    np.testing.assert_allclose(encoder(chat), last, atol=1e-5)
    assert encoder.space.contains(pickle.loads(pickle.dumps(encoder))([]))
    assert encoder([{"role": "user", "content": "7 + " * 4000}]).shape == encoder.space.shape


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Choose(voting_v0.env(), []), "generator_0 must be one or more texts"),
        (lambda: Choose(voting_v0.env(), "ab"), "must be one or more texts, got 'ab'"),
        (lambda: Choose(voting_v0.env(), ["a", 1]), "must be one or more texts"),
        (lambda: Choose(voting_v0.env(), ["a", "a"]), "must be different"),
        (lambda: Choose(voting_v0.env(), {"generator": ["a"]}), "has none for aggregator_0"),
        (lambda: Choose(voting_v0.env(), {"genrator": ["a"]}), "'genrator'. Did you mean"),
        (lambda: Choose(voting_v0.env(), mask="state"), "unknown mask 'state'"),
        (lambda: Choose(Choose(voting_v0.env())), "whose actions are texts"),
        (lambda: Encode(voting("observation"), ByteEncoder()), "wrap with it first"),
        (lambda: Encode(voting_v0.env(), str), "an array of numbers"),
        (lambda: Encode(voting_v0.env(), lambda chat: [1.0]), "an array of numbers"),
        (lambda: BareInfos(gymnasium.make("CartPole-v1")), "an environment of flowzoo"),
        (lambda: ByteEncoder(0), "length: expected a whole number of at least 1"),
        (lambda: NgramEncoder(8, 9), "n: expected a whole number from 1 to 8"),
        (
            lambda: Choose(
                gymnasium.make("flowzoo/Voting-v0", role="generator"),
                {"generator": ["a"], "generator_1": ["a", "b"]},
            ),
            "equal numbers of replies",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_wrapped_is_said_at_once(make, said):
    with pytest.raises(UsageError, match=said):
        make()


@pytest.mark.parametrize("action", [3, -1, 0.5, "\\boxed{1}", np.array([0, 1])])
def test_an_action_that_is_no_number_of_a_reply_is_refused(action):
    env = ballot()
    env.reset(seed=0)
    with pytest.raises(UsageError, match="a whole number from 0 to 2, got"):
        env.step(action)


@pytest.mark.parametrize(
    "bad", [lambda n: np.zeros(n, np.float32), lambda n: np.full(2, np.nan * n, np.float32)]
)
def test_an_encoder_that_changes_is_refused_with_the_agent(bad):
    encoder = lambda chat: bad(2 + len(chat)) if chat else np.zeros(2, np.float32)  # noqa: E731
    env = opened(Encode(voting_v0.env(), encoder))
    with pytest.raises(UsageError, match="for generator_0"):
        env.last()
