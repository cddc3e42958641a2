"""Writers of the tokens of prompts; `benchmarks.families.check` compares all families."""

import json

import pytest

from benchmarks.families.check import open_chat
from flowzoo.agents.chat.prompts import EngineStats, fitted_prompts
from flowzoo.agents.chat.template import ChatTokenizer
from flowzoo.agents.evaluation.evaluate import record_from_json
from flowzoo.agents.pocket import load
from flowzoo.agents.policy import EarlierTurn, Request
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.envs import make_workflow
from flowzoo.envs.records import json_line
from flowzoo.envs.script import SampledRow


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
