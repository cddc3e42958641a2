"""Files that survive a crash, and what is told about those that did not."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowzoo import files
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
