"""Files that survive a crash, and what is told about those that did not."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import flowzoo
from flowzoo import files, provenance
from flowzoo.errors import DataError, SaveError, UsageError
from flowzoo.files import (
    free_path,
    lock_folder,
    read_json,
    read_rows,
    read_sealed,
    read_toml,
    replace_text,
    sealed,
    unlock_folder,
    writing,
)
from flowzoo.provenance import (
    REDACTED,
    describe_run,
    is_secret_name,
    redact,
    redact_command,
    redact_json,
)
from flowzoo.seeding import key_digest, key_int, key_rng, nth

NOBODY = 65534


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """Inside, files that nobody may read cannot be read, by root neither."""
    local = os.geteuid()
    if local == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(local)


def test_any_changed_bit_of_a_sealed_record_is_told(tmp_path):
    path = tmp_path / "record.json"
    record = {"lr": 0.1, "sharing": ("a=b",), "by step": {3: None}}
    path.write_text(json.dumps(sealed(record), indent=1))
    assert read_sealed(path) == {"lr": 0.1, "sharing": ["a=b"], "by step": {"3": None}}
    data = path.read_bytes()
    white = [position for position, byte in enumerate(data) if byte in b" \n"]
    name = data.index(b"sha256")  # without it there is a surplus field, and no digest
    for position in set(range(len(data))) - set(white) - set(range(name, name + 6)):
        changed = bytearray(data)
        changed[position] ^= 1
        path.write_bytes(changed)
        with pytest.raises(DataError, match=r"^[^\n]+$"):
            read_sealed(path)


def test_a_record_without_a_digest_is_taken_as_it_is(tmp_path):
    path = tmp_path / "record.json"
    path.write_text('{"a": 1}')
    assert read_sealed(path) == {"a": 1}
    path.write_text("[1]")
    with pytest.raises(DataError, match="is not a JSON object"):
        read_sealed(path)


def test_what_is_gone_is_told_from_what_may_not_be_read(tmp_path):
    for read in (read_json, lambda path: read_rows(path, str, "a row")):
        with pytest.raises(DataError, match="cannot be read: Is a directory"):
            read(tmp_path)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "secret.json"
        path.write_text("{}")
        path.chmod(0)
        Path(folder).chmod(0o755)
        with as_somebody_else(), pytest.raises(UsageError, match=r"Permission denied\. Fix"):
            read_json(path)
        assert path.stat().st_size == 2
        path.chmod(0o600)
        assert read_json(path) == {}


def test_rows_of_any_bytes_are_one_error(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": "\xff"}\n{"a": 2}\n')
    with pytest.raises(DataError, match=r"rows.jsonl, line 2: not a row"):
        read_rows(path, dict, "a row")
    path.write_bytes(b'{"a": 1}\n{"a": "\xff')
    assert read_rows(path, dict, "a row") == [{"a": 1}]


def test_what_cannot_be_written_leaves_the_old_text(tmp_path):
    path = tmp_path / "a" / "text"
    with pytest.raises(SaveError, match="text could not be written: No such file"), writing(path):
        replace_text(path, "new")
    path.parent.mkdir()
    replace_text(path, "old")
    (path.parent / ".text.partial").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_text(path, "new")
    assert path.read_text() == "old"


def test_a_free_path_is_one_that_nothing_has(tmp_path):
    path = tmp_path / "run"
    assert free_path(path) == path
    path.mkdir()
    (tmp_path / "run.1").symlink_to("nowhere")
    assert free_path(path) == tmp_path / "run.2"


DEEP = {
    "run.json": ("[" * 100_000, read_json, "deep is not JSON: it is nested too deeply"),
    "own.toml": (f"a = {'[' * 100_000}", read_toml, "deep is not TOML: it is nested too deeply"),
    "rows.jsonl": (
        f"{'[' * 100_000}\n1\n", lambda path: read_rows(path, int, "a number"),
        "deep, line 1: not a number: it is nested too deeply",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DEEP)
def test_what_is_nested_too_deeply_or_too_long_is_one_line(kind, tmp_path, monkeypatch):
    text, read, message = DEEP[kind]
    (tmp_path / "deep").write_text(text)
    with pytest.raises(DataError) as caught:
        read(tmp_path / "deep")
    assert str(caught.value) == f"{tmp_path}/{message}"
    monkeypatch.setattr(files, "MOST_BYTES", 1000)
    (tmp_path / "deep").write_text(f"{' ' * 1001}\n1\n")
    with pytest.raises(DataError, match="has more than 1,000 bytes"):
        read(tmp_path / "deep")


def test_a_file_without_an_end_is_refused(monkeypatch):
    monkeypatch.setattr(files, "MOST_BYTES", 1000)
    with pytest.raises(DataError, match="/dev/zero has more than 1,000 bytes"):
        read_toml(Path("/dev/zero"))


def test_a_folder_is_unlocked_though_a_child_has_its_lock(tmp_path):
    lock = lock_folder(tmp_path, "working")
    with subprocess.Popen(["sleep", "60"], pass_fds=[lock.fileno()]) as child:
        with pytest.raises(UsageError, match="another process is working"):
            lock_folder(tmp_path, "working")
        unlock_folder(lock, os.getpid() + 1)  # as a fork would: the owner's lock stays
        with pytest.raises(UsageError, match="another process is working"):
            lock_folder(tmp_path, "working")
        child.kill()
    lock = lock_folder(tmp_path, "working")
    with subprocess.Popen(["sleep", "60"], pass_fds=[lock.fileno()]) as child:
        unlock_folder(lock, os.getpid())
        lock_folder(tmp_path, "working").close()
        child.kill()


# -- provenance ------------------------------------------------------------------------------------


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


# -- Keys and streams ------------------------------------------------------------------------------


def test_keys_are_told_apart_by_their_parts_and_types():
    keys = [("a", "bc"), ("ab", "c"), ("abc",), ("a", "b", "c"), (1, "1"), ("1", 1), (11,), (1, 1)]
    assert len({key_digest(*key) for key in keys}) == len(keys)


def test_keys_do_not_depend_on_the_process():
    assert key_int("split", "Compute 1+1.") == 0x73EFEFB3CC07DCD3
    assert key_rng("x", 1).random() == key_rng("x", 1).random()


def test_nth_is_splitmix64():
    # The reference sequence of seed 0: first three outputs of the published generator.
    assert [nth(0, number) for number in (1, 2, 3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
