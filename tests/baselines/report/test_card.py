"""Model cards: metadata as the hub wants them, the report's verdicts, and no foreign markup."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the libraries of flowzoo[train]")

from huggingface_hub import ModelCard, try_to_load_from_cache

from flowzoo.baselines.report import card as card_module
from flowzoo.baselines.report.card import (
    CardSubject,
    escape_markdown,
    fence_code,
    license_of,
    model_card,
    starting_model,
)
from flowzoo.baselines.run.reading import RunData

LAST = CardSubject("shared", 10, adapter=False)


def run_data(folder: Path, **settings: Any) -> RunData:
    """A run of 6 evaluations on 40 problems, from 25 to 75 %."""
    rows = [
        {"step": 2 * number, "eval/scores": [float(item % 8 < 2 + number * 4 // 5)
                                             for item in range(40)]}
        for number in range(6)
    ]  # fmt: skip
    known = {"workflow": "voting", "algorithm": "grpo", "sharing": ["shared"], "steps": 10,
             "model": "pocket", "eval_split": "validation", "lr": 0.5}  # fmt: skip
    return RunData(
        folder, "run", known | settings, {}, {"versions": {"torch": "2.13.0"}}, rows, None
    )


def read(text: str) -> dict[str, Any]:
    """The metadata, as the hub's own library reads them."""
    return ModelCard(text).data.to_dict()


def test_metadata_are_what_the_hub_reads(tmp_path):
    found = ModelCard(model_card(run_data(tmp_path), LAST, "mine"))
    assert found.data.license == "apache-2.0"  # of the pocket model
    assert found.data.library_name == "transformers"
    assert found.data.pipeline_tag == "text-generation"
    assert found.data.tags == ["flowzoo", "reinforcement-learning", "multi-agent", "grpo"]
    assert found.data.base_model is None  # the hub takes its own ids only
    (result,) = found.data.eval_results or ()
    assert (result.metric_type, result.metric_value) == ("accuracy", 75.0)
    assert (result.dataset_split, found.data.model_name) == ("validation", "mine")


def test_a_base_on_the_hub_is_named_with_its_relation(tmp_path, monkeypatch):
    card = tmp_path / "base.md"
    card.write_text("---\nlicense: mit\n---\n# Base\n")
    asked: list[tuple[str, str]] = []

    def cached(repo: str, name: str) -> str:
        asked.append((repo, name))
        return str(card)

    assert try_to_load_from_cache("org/base-1B", "README.md") is None
    monkeypatch.setattr(card_module, "try_to_load_from_cache", cached)
    run = run_data(tmp_path, model="org/base-1B")
    found = read(model_card(run, LAST, "mine"))
    assert (found["base_model"], found["base_model_relation"]) == ("org/base-1B", "finetune")
    assert found["license"] == "mit"
    assert set(asked) == {("org/base-1B", "README.md")}
    adapter = read(model_card(run, LAST._replace(adapter=True), "mine"))
    assert (adapter["library_name"], adapter["base_model_relation"]) == ("peft", "adapter")


def test_licenses_come_from_the_starting_weights(tmp_path):
    assert license_of(str(tmp_path)) is None
    for head, wanted in (("license: cc-by-4.0", "cc-by-4.0"), ("license: [a, b]", None),
                         ("license: 'a: b\\n---'", None), ("- 1", None)):  # fmt: skip
        (tmp_path / "README.md").write_text(f"---\n{head}\n---\ntext\n")
        assert license_of(str(tmp_path)) == wanted
    assert license_of("pocket:no-such-task") is None
    assert starting_model(run_data(tmp_path, models=["shared=a/b=c"]), "shared") == "a/b=c"
    text = model_card(run_data(tmp_path, model=str(tmp_path)), LAST, "mine")
    assert "Its license is that of the starting weights" in text


def test_accuracies_have_intervals_and_verdicts_are_the_reports(tmp_path):
    text = model_card(run_data(tmp_path), LAST, "mine").replace("\u00a0", " ")
    assert re.search(r"\| before training \| 0 \| 25\.0 % \| 14\.2 % to 40\.2 % \|", text)
    assert re.search(r"\| these weights \| 10 \| 75\.0 % \| 59\.8 % to 85\.8 % \|", text)
    assert "Gain of these weights over the start: +50.0 points" in text
    assert "- **OK: Accuracy ended above the start.**" in text
    assert "- **Warning: The run is not finished.**" in text
    assert '"lr": 0.5' in text
    assert "torch 2.13.0" in text
    best = model_card(run_data(tmp_path), CardSubject("shared", 3, adapter=False), "mine")
    assert "no evaluation at the step of these weights" in best
    bare = RunData(tmp_path, "run", {"workflow": "voting"}, {}, {}, [], None)
    assert "The run was not evaluated." in model_card(bare, LAST, "mine")


def test_settings_that_a_run_chooses_are_apart_from_those_that_were_given(tmp_path):
    text = model_card(run_data(tmp_path, problems=4, shard_jobs=0, top_k=0), LAST, "mine")
    given, resolved = (json.loads(part) for part in re.findall(r"```json\n(.*?)```", text, re.S))
    assert (given["steps"], given["problems"]) == (10, 4)
    assert resolved == {"lr": 0.5, "shard_jobs": 0, "top_k": 0}
    assert not given.keys() & resolved.keys()


NASTY = (
    "a|b](http://evil) <script>x</script>\n---\n# head `` `` ```\n**b** _i_ www.evil.org ![x](y)"
)


def test_foreign_text_is_shown_and_does_nothing(tmp_path):
    run = run_data(tmp_path, workflow=f"m:{NASTY}", algorithm=NASTY, models=[f"shared={NASTY}"],
                   task=NASTY, note="```\n# out\n")  # fmt: skip
    text = model_card(run, LAST, NASTY)
    body = text.split("\n---\n", 1)[1]
    outside = re.sub(r"(?ms)^(`{3,})json\n.*?^\1$", "", body)
    assert "<" not in outside
    assert not re.search(r"(?<!\\)(\]\(|!\[|www\.|://)", outside)
    assert "# out" not in outside
    for line in outside.splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 5
    heads = [line for line in outside.splitlines() if line.startswith("#")]
    assert len(heads) == 4
    assert read(text)["library_name"] == "transformers"
    (result,) = ModelCard(text).data.eval_results or ()
    assert result.dataset_split == "validation"


def test_markup_is_escaped_and_fences_hold():
    assert escape_markdown("a_b *c* [d](e) <f> & x|y") == r"a_b \*c\* \[d\](e) &lt;f&gt; &amp; x\|y"
    for text, escaped in {
        "episodes: the rest, C#": "episodes: the rest, C#",
        "voting_v0@1:c491dcac": "voting_v0@1:c491dcac",
        "_a_ __b__ c__d": r"\_a\_ \_\_b\_\_ c\_\_d",
        "# a ## b#": r"\# a \## b#",
        "![x](y) $a$ ~~b~~": r"!\[x\](y) \$a\$ \~\~b\~\~",
        "https://a.b x_WWW.a.b": r"https\://a.b x_WWW\.a.b",
        "me@a-b.org": "me@&#8288;a-b.org",
        "me@www.b me@_b.c me@.b": r"me@&#8288;www\.b me@&#8288;\_b.c me@&#8288;.b",
    }.items():
        assert escape_markdown(text) == escaped
    assert escape_markdown("two\n\nlines\u202e") == "two lines"
    assert fence_code("x ```` y", "json").startswith("`````json\n")
