"""Making a pocket model: what it learns from, its tokenizer, its optimizer, the whole command."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from flowzoo.agents.hf.policy import TransformersPolicy
from flowzoo.agents.pocket import NAMES, SCALED, made_folder, pocket_path
from flowzoo.agents.policy import Request, Sampling
from flowzoo.envs import Workflow, make_workflow
from flowzoo.envs.tasks.task import split_of
from flowzoo.errors import UsageError
from flowzoo.seeding import key_rng
from tools.pocket import make as making
from tools.pocket.config import PocketConfig, command
from tools.pocket.data import Example, play_batched, play_examples, tokenizer_corpus, transcripts
from tools.pocket.make import (
    TokenizedExample,
    curriculum,
    encode,
    lr_share,
    make,
    new_model,
    reply_loss,
    train,
)
from tools.pocket.optimizer import Muon, orthogonalised
from tools.pocket.recipes import RECIPES, MixtureTask, Recipe, recipe_of
from tools.pocket.tokenizer import train_tokenizer

pytestmark = pytest.mark.xdist_group("pocket")  # they share a model
MATH = RECIPES["math"]


def levels(*shares: float) -> tuple[MixtureTask, ...]:
    """The levels of a task from 1 on, with their shares."""
    return tuple(MixtureTask(share, {"level": n}) for n, share in enumerate(shares, start=1))


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    return list(islice(transcripts(replace(MATH, variants=levels(80.0, 15.0, 5.0)), seed=3), 700))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(tokenizer_corpus(MATH, 500, 0), vocab_size=512, context=256)


def play(workflow: Workflow, index: int, rng: random.Random) -> list[Example]:
    return play_batched(workflow.task, [play_examples(workflow, index, rng, MATH, False)])[0]


def statement(example: Example) -> str:
    return example.messages[0]["content"].split("\n", 1)[0]


def test_only_pretraining_problems_are_used(examples):
    assert {split_of(statement(example)) for example in examples} == {"pretrain"}


def test_every_role_of_the_four_workflows_is_learned(examples):
    assert {example.role for example in examples} == {
        "single_v0/generator",
        "voting_v0/generator",
        "voting_v0/aggregator",
        "eval_opt_v0/generator",
        "eval_opt_v0/evaluator",
        "orch_workers_v0/orchestrator",
        "orch_workers_v0/worker",
        "orch_workers_v0/synthesizer",
    }


def test_the_reply_to_learn_is_right_whatever_was_played():
    workflow = make_workflow("orch_workers_v0", "math")
    for index in range(40):
        problem = workflow.task.problem(index, "pretrain")
        for example in play(workflow, index, key_rng("test", index)):
            if not example.role.endswith("orchestrator"):
                answer = workflow.task.answer(example.reply)
                assert workflow.task.grade_batch([problem], [answer])[0].score == 1.0


def test_hasty_examples_come_last(tmp_path):
    examples = curriculum(tiny(tmp_path, steps=20, hasty_steps=12))
    assert len(examples) == 20 * 8
    bare = [e.reply.startswith("\\boxed") for e in examples]
    assert not any(bare[: 8 * 8])
    assert sum(bare[8 * 8 :]) > 20


def test_supervisors_see_good_and_bad_work(examples):
    verdicts = ["Incorrect" in e.reply for e in examples if e.role.endswith("evaluator")]
    assert 0.3 < sum(verdicts) / len(verdicts) < 0.7
    choices = {e.reply[-2] for e in examples if e.role.endswith("aggregator")}
    assert choices == {"1", "2", "3"}


def test_every_recipe_has_a_shipped_model_and_an_unknown_task_names_them():
    assert set(RECIPES) == set(NAMES)
    with pytest.raises(UsageError, match=r"Valid choices: .*math"):
        recipe_of("chess")
    with pytest.raises(UsageError, match=r"only for .*math"):
        pocket_path("chess")


def test_transcripts_are_a_function_of_the_seed():
    first, again, other = (
        list(islice(transcripts(replace(MATH, variants=levels(1.0)), seed), 60))
        for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other


def test_digits_are_never_merged(tokenizer):
    ids = tokenizer("12+7*80=572. \\boxed{572}")["input_ids"]
    texts = [tokenizer.decode([i]) for i in ids]
    assert [text for text in texts if any(c.isdigit() for c in text)] == list("12780572572")


@pytest.mark.parametrize("text", ["Compute 1+2.", "naïve π 漢字 🙂", "\x00\r\n\t ", "<think>x", ""])
def test_any_text_survives_the_tokenizer(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_chats_are_rendered_as_chatml(tokenizer):
    chat = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    rendered = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert rendered == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    )
    ids = tokenizer(rendered)["input_ids"]
    assert ids.count(tokenizer.eos_token_id) == 3
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 4


def test_rows_end_with_the_end_of_turn(tokenizer, examples):
    row = encode(examples[:1], tokenizer)[0]
    assert row.reply[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(row.reply[:-1]) == examples[0].reply
    assert tokenizer.decode(row.prompt).endswith("<|im_start|>assistant\n")


def tiny(out: Path, **changes: Any) -> PocketConfig:
    settings: dict[str, Any] = {
        "steps": 6, "hasty_steps": 2, "batch": 8, "warmup": 2, "layers": 1, "hidden": 32,
        "intermediate": 32, "heads": 1, "key_value_heads": 1, "vocab": 512, "context": 512,
        "evaluate": 2, **changes,
    }  # fmt: skip
    return PocketConfig(out, **settings)


def test_the_loss_counts_reply_tokens_only_and_ignores_padding(tokenizer, tmp_path):
    model = new_model(tiny(tmp_path), tokenizer).eval()
    rows = [
        TokenizedExample([5, 6, 7], [8, 9]),
        TokenizedExample([10] * 20, [11]),
        TokenizedExample([12], [13, 14, 15]),
    ]
    with torch.no_grad():
        together = reply_loss(model, rows)
        expected = 0.0
        for prompt, reply in rows:
            logps = model(torch.tensor([prompt + reply])).logits[0].log_softmax(-1)
            places = range(len(prompt) - 1, len(prompt) + len(reply) - 1)
            expected -= sum(
                float(logps[position, token]) for position, token in zip(places, reply, strict=True)
            )
    assert float(together) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("shape", [(8, 24), (24, 8), (8, 8)])
def test_muon_minimises(shape):
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(shape, generator=generator)
    weight = torch.zeros(shape, requires_grad=True)
    still = torch.ones(shape, requires_grad=True)
    optimizer = Muon([weight, still], lr=0.05, weight_decay=0.0)
    for _ in range(200):
        optimizer.zero_grad()
        (weight - target).square().sum().backward()
        optimizer.step()
    assert (weight - target).square().mean() < 0.02 * target.square().mean()
    assert torch.equal(still, torch.ones(shape))


def test_training_lowers_the_loss(tokenizer, examples, tmp_path):
    config = tiny(tmp_path, steps=40, batch=16)
    losses = list(train(new_model(config, tokenizer), encode(examples, tokenizer), config))
    assert len(losses) == 40
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


@pytest.fixture(scope="module")
def small_corpus() -> Iterator[None]:
    """Tokenizers are made of a tenth of the examples."""

    def small(recipe: Recipe, examples: int, seed: int) -> Iterator[str]:
        return tokenizer_corpus(recipe, examples // 10, seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(making, "tokenizer_corpus", small)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, small_corpus: None) -> Path:
    out = tmp_path_factory.mktemp("made")
    make(tiny(out))
    return out


@pytest.mark.full
def test_the_same_settings_make_the_same_files(made, tmp_path, small_corpus):
    make(tiny(tmp_path, evaluate=0))
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (made / name).read_bytes() == (tmp_path / name).read_bytes()
    make(tiny(tmp_path, evaluate=0, seed=1))
    assert (made / "model.safetensors").read_bytes() != (
        tmp_path / "model.safetensors"
    ).read_bytes()


@pytest.mark.full
def test_the_card_names_the_command_and_the_figures(made):
    card = (made / "README.md").read_text(encoding="utf-8")
    assert command(tiny(made)) in card
    assert "| voting_v0 | sampled |" in card
    assert str(made) not in card


def test_the_command_spells_out_what_differs_from_the_defaults():
    assert command(PocketConfig(Path("x"))) == "python -m tools.pocket --out DIR"
    config = PocketConfig(Path("x"), steps=999, matrix_lr=0.5, vocab=900)
    assert command(config).endswith("--steps 999 --matrix-lr 0.5 --vocab 900")
    config = PocketConfig(Path("x"), task="code", scale="xs")
    assert command(config).endswith("pocket --out DIR --task code --scale xs")
    assert command(PocketConfig(scale="m")) == "python -m tools.pocket --scale m"


@pytest.mark.parametrize(
    ("scale", "million"),
    [("xs", 0.3), ("default", 0.64), ("s", 1.0), ("m", 4.0), ("l", 11.0), ("xl", 97.0)],
)
def test_a_scale_has_the_parameters_of_its_name(scale, million):
    tokenizer = AutoTokenizer.from_pretrained(pocket_path("math"))
    with torch.device("meta"):
        model = new_model(PocketConfig(Path("x"), scale=scale), tokenizer)
    assert model.num_parameters() == pytest.approx(million * 1e6, rel=0.15)


def test_a_size_in_numbers_stands_in_for_the_default_one(tmp_path):
    assert PocketConfig(tmp_path, hidden=64).shape == (3, 64, 256, 4, 2)
    with pytest.raises(UsageError, match="scale s and `hidden` both say how large the model is"):
        PocketConfig(tmp_path, scale="s", hidden=64)


def test_what_is_not_shipped_goes_where_it_is_looked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("FLOWZOO_CACHE", str(tmp_path))
    for task in SCALED:
        config = PocketConfig(task=task, scale="m")
        assert config.folder == made_folder(task, "m") == tmp_path / f"pocket/{task}-m"
    assert PocketConfig(Path("x"), scale="m").folder == Path("x")
    shipped: list[dict[str, Any]] = [{}, {"scale": "xs"}, {"task": "sudoku"}]
    for settings in shipped:
        with pytest.raises(UsageError, match="is shipped: say with `--out` where"):
            PocketConfig(**settings)
    with pytest.raises(UsageError, match="in scale m 'sudoku'"):
        PocketConfig(task="sudoku", scale="m")


def test_the_recipe_says_how_long_unless_numbers_are_given():
    code = PocketConfig(Path("x"), task="code", scale="s")
    assert code.schedule == (RECIPES["code"].steps, RECIPES["code"].hasty_steps) == (1000, 250)
    assert replace(code, steps=300).schedule == (300, 250)
    assert replace(code, hasty_steps=0).schedule == (1000, 0)
    with pytest.raises(UsageError, match="from 0 to `steps` \\(200\\), got 250"):
        replace(code, steps=200)
    assert PocketConfig(Path("x"), scale="l").schedule == (2000, 500)


async def test_a_made_model_answers_with_its_own_tokens(made):
    policy = TransformersPolicy.from_pretrained(
        made, dtype="float32", sampling=Sampling(max_tokens=5)
    )
    chat = [{"role": "user", "content": "Compute 1+2*3."}]
    [completion] = await policy.generate([Request((0,), "generator_0", "generator", chat)])
    await policy.close()
    assert policy.tokenizer.decode(completion.prompt_ids).startswith("<|im_start|>user\nCompute 1")
    assert 1 <= len(completion.output_ids) <= 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "`steps` must be greater than 0, got 0"),
        ({"warmup": -1}, "`warmup`"),
        ({"hasty_steps": 7}, "from 0 to `steps` \\(6\\), got 7"),
        ({"heads": 4, "key_value_heads": 3}, "multiple of `key_value_heads`"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        tiny(Path("x"), **changes)


def test_cells_and_moves_are_tokens_of_their_own():
    text = """Grid:\n.#P.\nG..#\nYou. ["U","D"] print('["L"]') "R", "U\""""
    tokenizer = train_tokenizer(
        [text] * 50, vocab_size=400, context=256, atoms=RECIPES["plan_path"].atoms
    )
    pieces = [tokenizer.decode([i]) for i in tokenizer(text)["input_ids"]]
    assert "".join(pieces) == text
    start = pieces.index("#") - 1
    assert pieces[start : start + 9] == [*".#P.\nG..#"]
    assert [piece for piece in pieces if piece in ('"U"', ',"D"', '"L"')] == ['"U"', ',"D"', '"L"']


def test_no_token_has_more_than_one_word_of_a_text():
    text = "I lost my camera at the zoo, but a gardener found it.\n\nWrite a concise summary."
    atoms = RECIPES["writing"].atoms
    tokenizer = train_tokenizer([text] * 50, vocab_size=400, context=256, atoms=atoms)
    pieces = [tokenizer.decode([i]) for i in tokenizer(text)["input_ids"]]
    assert "".join(pieces) == text
    assert {" gardener", " zoo,", "Write"} < set(pieces)
    assert all(len(piece.split()) <= 1 for piece in pieces)


def test_learning_rates_rise_then_fall(tmp_path):
    config = tiny(tmp_path, steps=100, warmup=10)
    shares = [lr_share(step, config) for step in range(100)]
    assert shares[0] == pytest.approx(0.1)
    assert max(shares) == shares[9] == pytest.approx(0.91)
    assert shares[99] == pytest.approx(0.01)


def test_orthogonalised_moves_singular_values_to_one():
    matrices = torch.randn(3, 16, 40, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalised(matrices))
    assert values.min() > 0.5
    assert values.max() < 1.3
