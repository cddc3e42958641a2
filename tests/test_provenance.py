import json
import subprocess

import pytest

import flowzoo
from flowzoo import provenance
from flowzoo.provenance import (
    REDACTED,
    describe_run,
    is_secret_name,
    redact,
    redact_command,
    redact_json,
)

SECRET = ("api_key", "OPENAI_API_KEY", "HF_TOKEN", "token", "clientSecret", "Authorization",
          "apiKey", "db-password", "aws_secret_access_key", "private_key")  # fmt: skip
PLAIN = ("max_tokens", "eos_token", "pad_token", "api_key_env", "key", "tokens", "monkey", "keys",
         "tokenizer", "secretary", "")  # fmt: skip


@pytest.mark.parametrize("name", [*SECRET, *PLAIN])
def test_secret_names(name):
    assert is_secret_name(name) == (name in SECRET)


def test_redact_goes_into_nested_values_and_leaves_the_input_alone():
    record = {
        "policy": {"api_key": "abc", "max_tokens": 64, "headers": [{"Authorization": "Bearer q"}]},
        "eos_token": "<|im_end|>",
        "steps": (1, 2.5, None),
    }
    before = json.dumps(record)
    assert redact(record) == {
        "policy": {"api_key": REDACTED, "max_tokens": 64, "headers": [{"Authorization": REDACTED}]},
        "eos_token": "<|im_end|>",
        "steps": [1, 2.5, None],
    }
    assert json.dumps(record) == before


@pytest.mark.parametrize("value", [None, "", False, True])
def test_a_secret_that_is_not_set_stays_visible(value):
    assert redact({"api_key": value}) == {"api_key": value}


@pytest.mark.parametrize("value", [12345678, ["a", "b"], {"user": "x"}, "short"])
def test_whatever_a_secret_name_holds_is_replaced(value):
    assert redact({"password": value}) == {"password": REDACTED}


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("key sk-proj-abcDEF0123456789 here", "abcDEF0123456789"),
        ("hf_abcdefghijklmnopqrst", "abcdefghijklmnopqrst"),
        ("Authorization: Bearer abc.def.ghi", "abc.def.ghi"),
        ("https://user:hunter2@example.org/v1", "hunter2"),
        ("https://example.org/v1?a=1&api_key=hunter2", "hunter2"),
    ],
)
def test_secrets_inside_text(text, secret):
    assert secret in text
    clean = redact(text)
    assert secret not in clean
    assert REDACTED in clean


def test_plain_text_is_unchanged():
    text = "flowzoo eval voting --policy openai:m@https://example.org/v1 task=math ask-me-anything"
    assert redact(text) == text


def test_values_of_secret_variables_are_found_anywhere(monkeypatch):
    monkeypatch.setenv("MY_SERVICE_API_KEY", "odd shape 42")
    assert redact({"note": "sent odd shape 42 twice"}) == {"note": f"sent {REDACTED} twice"}


def test_values_of_secret_variables_in_json_leave_it_json(monkeypatch):
    monkeypatch.setenv("ODD_PASSWORD", '"a": 1, ü\\')
    monkeypatch.setenv("NUMBER_SECRET", "12345678")
    row = {"a": 1, "text": 'so "a": 1, ü\\ it is', "list": [0.12345678, 12345678, "x12345678"]}
    assert json.loads(redact_json(json.dumps(row))) == {
        **row, "text": f"so {REDACTED} it is", "list": [0.12345678, 12345678, f"x{REDACTED}"],
    }  # fmt: skip
    plain = json.dumps({"a": 1, "text": "sk-learn-is-a-library", "token": "x"})
    assert redact_json(plain) == plain


def test_command_line():
    argv = ["flowzoo", "eval", "--api-key", "abc", "--hf-token=def", "--max-tokens", "64", "--json"]
    assert redact_command(argv) == [
        "flowzoo", "eval", "--api-key", REDACTED, f"--hf-token={REDACTED}", "--max-tokens", "64",
        "--json",
    ]  # fmt: skip


def test_command_line_hides_the_values_of_secret_variables(monkeypatch):
    monkeypatch.setenv("MY_SERVICE_API_KEY", "odd-shape-42")
    assert redact_command(["x", "--note=odd-shape-42"]) == ["x", f"--note={REDACTED}"]


def test_a_secret_option_without_a_value_does_not_swallow_the_next_option():
    assert redact_command(["x", "--token", "--seed", "3"]) == ["x", "--token", "--seed", "3"]


def test_the_record_is_json_names_the_versions_and_holds_no_secret(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "not-a-real-value-1234")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    record = describe_run(["flowzoo", "train", "--note", "not-a-real-value-1234"])
    text = json.dumps(record)
    assert "not-a-real-value-1234" not in text
    assert record["versions"]["flowzoo"] == flowzoo.__version__
    assert record["versions"]["numpy"] == __import__("numpy").__version__
    assert record["environment"]["OMP_NUM_THREADS"] == "1"
    assert record["cores"] >= 1
    assert record == describe_run(["flowzoo", "train", "--note", "not-a-real-value-1234"])


def test_source_revision_is_that_of_the_checkout_and_marks_changes(tmp_path, monkeypatch):
    def git(*args):
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        done = subprocess.run(
            ["git", *identity, *args], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    source = tmp_path / "provenance.py"
    source.write_text("one\n")
    monkeypatch.setattr(provenance, "__file__", str(source))
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "zero")
    assert provenance.source_revision() is None  # inside a checkout, but not part of it
    git("add", "provenance.py")
    git("commit", "-q", "-m", "one")
    head = git("rev-parse", "HEAD")
    assert provenance.source_revision() == head
    source.write_text("two\n")
    assert provenance.source_revision() == f"{head}+changes"
