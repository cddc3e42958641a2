"""Prompts over their budget, and the writers of their tokens."""

import json
import random

import pytest
from policies import Replies
from transformers import AutoTokenizer

from benchmarks.families.check import open_chat
from flowzoo.agents.chat.prompts import (
    MARK,
    EngineStats,
    find_spans,
    fitted_prompts,
    middle_out,
    shorten,
)
from flowzoo.agents.chat.template import ChatTokenizer
from flowzoo.agents.evaluation.evaluate import record_from_json
from flowzoo.agents.openai.policy import OpenAIPolicy
from flowzoo.agents.pocket import load, pocket_path
from flowzoo.agents.policy import Completion, EarlierTurn, Request, Sampling, prompt_budget
from flowzoo.agents.policy_map import Lengths, PolicyMap, read_lengths, with_default
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.envs import make_workflow
from flowzoo.envs.records import json_line
from flowzoo.envs.script import SampledRow
from flowzoo.errors import UsageError

PROBLEM = "A train of 12 wagons leaves at 3 o'clock. When does it arrive?"
LONG = "First I look at the wagons. " * 20 + "So the answer is \\boxed{5}."
SHORT = "It takes two hours, hence the answer is \\boxed{5}."
BALLOT = f"{PROBLEM}\n\nCandidate 1:\n{LONG}\n\nCandidate 2:\n{SHORT}\n\nWhich one is right?"


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def fits(most: int):
    return lambda messages: sum(len(m["content"]) for m in messages) <= most


def test_middle_out_keeps_both_ends_and_never_makes_a_text_longer():
    assert middle_out("abcdefghijklmnop", 5) == f"abc{MARK}op"
    assert middle_out("abcdefghijklmnop", 0) == MARK
    for size in range(40):
        text = "x" * size
        for cap in range(45):
            assert len(middle_out(text, cap)) <= size


def test_the_longest_candidate_gives_way_and_everything_else_stays():
    (message,) = shorten(user(BALLOT), PROBLEM, (LONG, SHORT), fits(len(BALLOT) - 200)) or []
    text = message["content"]
    assert len(BALLOT) - 230 < len(text) <= len(BALLOT) - 200
    for remaining in (PROBLEM, SHORT, "Which one is right?", "So the answer is \\boxed{5}.\n"):
        assert remaining in text
    assert text.count(MARK) == 1
    assert "\n\nCandidate 1:\nFirst I look" in text


def test_equal_candidates_are_cut_equally():
    replies = tuple("abc"[i] * 400 + f" {i}" for i in range(3))
    ballot = f"{PROBLEM}\n" + "\n".join(replies)
    (message,) = shorten(user(ballot), PROBLEM, replies, fits(600)) or []
    parts = message["content"].split("\n")[1:]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert all(MARK in part for part in parts)


def test_a_candidate_that_quotes_the_problem_is_cut_and_the_problem_itself_is_not():
    reply = f"The problem says: {PROBLEM} " + "Well. " * 50
    ballot = f"{PROBLEM}\n\nCandidate 1:\n{reply.strip()}"
    (message,) = shorten(user(ballot), PROBLEM, (reply,), fits(150)) or []
    assert message["content"].startswith(PROBLEM)
    assert message["content"].count(PROBLEM) == 1


def test_without_known_quotes_all_but_the_problem_gives_way():
    chat = [{"role": "system", "content": "s" * 300}, *user(f"{PROBLEM}\n{'u' * 300}")]
    output = shorten(chat, PROBLEM, (), fits(300)) or []
    assert PROBLEM in output[1]["content"]
    assert [message["content"].count(MARK) for message in output] == [1, 1]
    assert shorten(chat, PROBLEM, (), fits(40)) is None


def test_short_replies_and_thoughts_are_not_looked_for():
    spans = find_spans(user(f"{PROBLEM} 5 5 {SHORT}"), PROBLEM, ("5", f"<think>hm</think>{SHORT}"))
    assert [span.quote for span in spans] == [True]


def test_random_chats_fit_or_are_refused_and_keep_the_problem():
    rng = random.Random(7)
    args = ["ab", "problem", "π", "\n", " ", "Candidate", "[...]"]
    for _ in range(300):
        quotes = tuple("".join(rng.choices(args, k=rng.randrange(60))) for _ in range(4))
        keep = "K" + "".join(rng.choices(args, k=rng.randrange(1, 20)))
        chat = user("".join(rng.sample([keep, *quotes, quotes[0], "tail " * 9], k=7)))
        most = rng.randrange(len(chat[0]["content"]) + 1)
        results = shorten(chat, keep, quotes, fits(most))
        if results is not None:
            assert fits(most)(results)
            assert keep in results[0]["content"]
        else:
            assert most < len(keep) + 12 * (len(MARK) + 24)


def test_prompts_are_cut_in_tokens_and_say_how_many():
    chat, stats = ChatTokenizer(AutoTokenizer.from_pretrained(pocket_path())), EngineStats()
    request = Request(("k",), "a_0", "a", user(BALLOT), keep=PROBLEM, quotes=(LONG, SHORT))
    full = len(chat.encode([request.messages])[0].ids)
    budgets = [full, full - 40, full - 40, 10]
    prompts = fitted_prompts(chat, [request] * 4, budgets, stats, "p")
    assert [prompt.shortened for prompt in prompts[:1]] == [0]
    for prompt, budget in zip(prompts, budgets, strict=True):
        assert len(prompt.ids) <= budget
        assert len(prompt.ids) + prompt.shortened == full
    assert full - 60 < len(prompts[1].ids)
    assert chat.decode(prompts[1].ids).count(PROBLEM) == 1
    assert stats.shortened == 3


def test_role_budgets_are_read_and_checked():
    roles = {"generator": 2, "aggregator": 1}
    results = read_lengths(("generator=30720/5120", "aggregator=/64", "generator_1=99"), roles)
    assert results == {
        "generator": Lengths(30720, 5120),
        "aggregator": Lengths(None, 64),
        "generator_1": Lengths(99),
    }
    full, longest = with_default(results, roles, 256)
    assert longest == 5120
    assert full["generator_1"] == Lengths(99, 5120)
    assert with_default({"aggregator": Lengths(9)}, roles, 256)[0] == {
        "generator": Lengths(None, 256),
        "aggregator": Lengths(9, 256),
    }
    for args, texts in (
        (("generator",), "ROLE=PROMPT/REPLY"),
        (("generator=/",), "ROLE=PROMPT/REPLY"),
        (("generatr=4",), "Did you mean 'generator'"),
        (("generator=4", "generator=5"), "twice"),
        (("generator=0",), "at least 1"),
    ):
        with pytest.raises(UsageError, match=texts):
            read_lengths(args, roles)
    parrot = Replies(chatter)
    policy_map = PolicyMap(dict.fromkeys(roles, parrot), {"agregator": Lengths(1)})
    with pytest.raises(UsageError, match="unknown role or agent 'agregator'"):
        policy_map.check(roles)


def test_budgets_that_a_policy_cannot_keep_are_refused():
    roles = {"generator": 1}
    endpoint = OpenAIPolicy("m", "http://127.0.0.1:1/v1", sampling=Sampling(max_tokens=10))
    PolicyMap({"generator": endpoint}, {"generator": Lengths(reply=10)}).check(roles)
    with pytest.raises(UsageError, match=r"cannot count tokens.*vllm:PATH@URL"):
        PolicyMap({"generator": endpoint}, {"generator_0": Lengths(prompt=9)}).check(roles)
    with pytest.raises(UsageError, match="11, is above the 10 tokens"):
        PolicyMap({"generator": endpoint}, {"generator": Lengths(reply=11)}).check(roles)


def test_budgets_share_the_context():
    def ask(**caps: int) -> Request:
        return Request(("k",), "a_0", "a", user("x"), **caps)

    sampling = Sampling(max_tokens=30)
    assert prompt_budget(ask(), sampling, 100) == 70
    assert prompt_budget(ask(max_tokens=10), sampling, 100) == 90
    assert prompt_budget(ask(max_prompt=50), sampling, 100) == 50
    assert prompt_budget(ask(max_prompt=90), sampling, 100) == 70
    with pytest.raises(UsageError, match="max_prompt"):
        prompt_budget(ask(max_prompt=0), sampling, 100)


def chatter(request: Request) -> Completion:
    return Completion(f"{request.agent}: {LONG}", shortened=3)


def test_rollouts_tell_engines_what_may_be_shortened_and_records_what_was():
    workflow = make_workflow("voting_v0", "math")
    problem = workflow.task.problem(0, "validation")
    parrot = Replies(chatter)
    roles = workflow.role_counts()
    policy_map = PolicyMap(dict.fromkeys(roles, parrot), {"aggregator": Lengths(77, 9)})
    (record,) = Rollout(workflow, policy_map).run([EpisodeJob(problem)])
    *drafts, choice = parrot.requests
    assert {(r.max_prompt, r.max_tokens, r.quotes) for r in drafts} == {(None, None, ())}
    assert (choice.max_prompt, choice.max_tokens, choice.keep) == (77, 9, problem.text)
    spans = find_spans(choice.messages, choice.keep, choice.quotes)
    assert sum(span.quote for span in spans) == 3
    assert [call.shortened for call in record.calls] == [3, 3, 3, 3]


def asked(*texts: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]


def parts(chat: ChatTokenizer, ids: tuple[int, ...], writers) -> list[tuple[str, str]]:
    """Writers with what they wrote."""
    rest = list(ids)
    pairs = []
    for writer, size in writers:
        pairs.append((writer, chat.tokenizer.decode(rest[:size])))
        del rest[:size]
    assert not rest
    return pairs


def test_texts_of_messages_are_told_from_the_template_that_writes_the_same():
    chat, _ = open_chat("neox")
    prompt = chat.measure(asked("user", "assistant\n", "\n"))
    assert parts(chat, prompt.ids, prompt.writers) == [
        ("template", "<|im_start|>user\n"), ("user", "user"),
        ("template", "<|im_end|>\n<|im_start|>assistant\n"), ("user", "assistant\n"),
        ("template", "<|im_end|>\n<|im_start|>user\n\n<|im_end|>\n<|im_start|>assistant\n"),
    ]  # fmt: skip


@pytest.mark.parametrize("split", [True, False])
def test_sampled_tokens_stay_sampled_in_later_prompts(split):
    chat, _ = open_chat("neox")
    first = chat.measure(asked("2 + 3?"))
    text = "It is 5."
    reply = chat.tokenizer(list(text) if split else text, add_special_tokens=False)["input_ids"]
    ids = tuple(number for piece in reply for number in piece) if split else tuple(reply)
    row = SampledRow(first.ids, ids, first.writers)
    later = asked("2 + 3?", text, "And doubled?")
    (second,) = chat.encode([later], None, [EarlierTurn(later[:1], row)])
    assert second.ids[: len(first.ids) + len(ids)] == (*first.ids, *ids)
    assert second.writers[:4] == (*first.writers, ("sampled", len(ids)))
    last = asked("2 + 3?", text, "And doubled?", "10", "Why?")
    more = SampledRow(second.ids, chat.tokenizer("10")["input_ids"], second.writers)
    (third,) = chat.encode([last], None, [EarlierTurn(last[:3], more)])
    assert [writer for writer, _ in third.writers] == [
        "template", "user", "template", "sampled", "template", "user", "template", "sampled",
        "template", "user", "template",
    ]  # fmt: skip
    unknown = EarlierTurn(later[:1], row._replace(writers=()))
    assert chat.encode([later], None, [unknown])[0].writers == ()


def test_a_prompt_that_lost_its_middle_keeps_its_writers():
    chat, _ = open_chat("neox")
    whole = chat.measure(asked("one two three " * 40))
    cut = whole.cut(20)
    by_token = [writer for writer, size in whole.writers for _ in range(size)]
    kept = [writer for writer, size in cut.writers for _ in range(size)]
    assert kept == by_token[:10] + by_token[-10:]
    request = Request(("a",), "a", "a", asked("one two three " * 40))
    (short,) = fitted_prompts(chat, [request], [30], EngineStats(), "p")
    assert len(short.ids) <= 30
    assert sum(size for _, size in short.writers) == len(short.ids)


def test_a_template_that_changes_with_the_text_is_not_guessed():
    chat, _ = open_chat("neox")
    chat.tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.content | length }}]{{ m.content }}<|im_end|>{% endfor %}"
    )
    assert chat.measure(asked("12 + 34 + 5")).writers == ()


@pytest.mark.parametrize("number", [0, 9, 10**30])
def test_arguments_of_calls_that_look_like_marks_leave_the_writers_unknown(number):
    chat, _ = open_chat("llama-3")
    call = {"type": "function", "function": {"name": "f", "arguments": {"x": "print(1)"}}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    turns = [*asked(f"Qz{number}zQ"), said, {"role": "tool", "content": "1"}]
    assert chat.measure(turns).writers
    call["function"]["arguments"] = {"x": f"print('Qz{number}zQ')"}
    assert chat.measure(turns).writers == ()


async def test_recorded_rows_keep_who_wrote_each_token():
    workflow = make_workflow("eval_opt", "math")
    problem = workflow.task.problem(0, "train")
    rollout = Rollout(workflow, PolicyMap.shared(load(), workflow.roles))
    (record,) = await rollout.arun([EpisodeJob(problem)])
    assert record.calls
    for call in record.calls:
        assert sum(size for _, size in call.writers) == len(call.prompt_ids)
        assert {writer for writer, _ in call.writers} == {"template", "user"}
    line = json_line(record.to_json())
    assert record_from_json(json.loads(line)) == record
    size = len(json.dumps([call.writers for call in record.calls]))
    assert size < 0.1 * len(line)
