"""Data sets of the hub: folders in its layout, its cache, and what is said where it is not reached.

The hub itself is never asked: a program that is told to stay offline reads a cache that `datasets`
wrote, under the names that it gives to what it downloaded.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flowzoo.envs.tasks import make_task, rows
from flowzoo.envs.tasks.rows import Published, published_rows, read_published
from flowzoo.errors import DataError, UsageError

datasets = pytest.importorskip("datasets", reason="data sets need flowzoo[data]")
arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CARD = """---
configs:
- config_name: main
  data_files:
  - {split: train, path: main/train-*.parquet}
  - {split: test, path: main/test-*.parquet}
- config_name: socratic
  data_files: socratic/train-*
---
"""


def gsm(*sums: tuple[int, int]) -> list[dict[str, str]]:
    return [{"question": f"{a}+{b}?", "answer": f"It is {a + b}.\n#### {a + b}"} for a, b in sums]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set as `hf download --local-dir` leaves it: two configurations, shards, a card."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")  # locks lie there
    tables = {
        "main/train-00000-of-00002": gsm((1, 1), (1, 2)),
        "main/train-00001-of-00002": gsm((1, 3), (1, 4)),
        "main/test-00000-of-00001": gsm((2, 1)),
        "socratic/train-00000-of-00001": gsm((3, 1)),
    }
    for name, table in tables.items():
        path = tmp_path / "sums" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(arrow.Table.from_pylist(table), path)
    (tmp_path / "sums" / "README.md").write_text(CARD)
    return tmp_path / "sums"


def asked(data: str) -> list[tuple[int, str]]:
    return [(number, row["question"]) for number, row in published_rows(data)]


def test_a_folder_in_the_layout_of_the_hub(folder):
    train = [(1, "1+1?"), (2, "1+2?"), (3, "1+3?"), (4, "1+4?")]
    assert asked(f"{folder}:main@train") == train
    assert asked(f"{folder}:main@train[1:3]") == train[1:3]
    assert asked(f"{folder}:main@train[:1]") == train[:1]
    assert asked(f"{folder}:main@train[3:]") == train[3:]
    assert asked(f"{folder}:socratic") == [(1, "3+1?")]
    with pytest.raises(UsageError, match=r"several splits; choose one of: .*sums:main@train, "):
        asked(f"{folder}:main")
    with pytest.raises(DataError, match=r"main.*socratic"):
        asked(str(folder))
    with pytest.raises(DataError, match=r"Bad split: dev\. Available splits: .*train"):
        asked(f"{folder}:main@dev")
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match="doesn't contain any data files"):
        asked(str(folder / "empty"))


def test_a_task_reads_it_and_sees_what_has_changed(folder):
    data = f"{folder}:main@train"
    task = make_task("math", data=data)
    assert [task.problem(index, "all").text for index in range(4)] == [
        "1+1?", "1+2?", "1+3?", "1+4?",
    ]  # fmt: skip
    assert make_task("math", data=f"{data}[0:4]").digest == task.digest
    parquet.write_table(
        arrow.Table.from_pylist(gsm((1, 5))), folder / "main" / "train-00001-of-00002.parquet"
    )
    assert make_task("math", data=data).size("all") == 3
    rows.reload.cache_clear()  # else a process trusts what it has read
    with pytest.raises(DataError, match="has changed"):
        make_task("math", data=data, digest=task.digest)
    (folder / "main" / "train-00001-of-00002.parquet").write_bytes(b"no parquet")
    with pytest.raises(DataError, match="could not be loaded"):
        make_task("math", data=data)


def test_a_line_names_place_configuration_split_rows_and_revision(folder):
    assert read_published("org/name") == Published("org/name")
    line = f"org/name:en@train[10:20]#{COMMIT}"
    assert read_published(line) == Published("org/name", "en", "train", 10, 20, COMMIT)
    assert read_published("org/na.me#refs/pr/1").revision == "refs/pr/1"
    strange = folder.parent / "a:b@c#d"
    folder.rename(strange)
    assert read_published(str(strange)) == Published(str(strange))
    for data, message in {
        f"{strange}#main": "a folder has no revisions; leave out #main",
        "org/name@train[5:5]": "no row is in the range from 5 to before 5",
        "org/name@train[:10%]": "nor a dataset id",
        "org/train.jsonl": "neither an existing file or folder",
        "gone": "neither an existing file or folder",
        "../etc/passwd": "neither an existing file or folder",
    }.items():
        with pytest.raises(UsageError, match=message):
            read_published(data)


OFFLINE = """
import json, logging, sys
logging.basicConfig(format="%(message)s", stream=sys.stdout)
import datasets
datasets.logging.set_verbosity_error()
from datasets.config import HF_DATASETS_CACHE
from datasets.packaged_modules.parquet.parquet import Parquet
from flowzoo.envs.tasks.rows import published_rows
from flowzoo.errors import DataError
where = f"{HF_DATASETS_CACHE}/org___sums/default/0.0.0/{sys.argv[1]}"
Parquet(dataset_name="sums", data_files=sys.argv[2]).download_and_prepare(where)
for data in json.loads(sys.argv[3]):
    try:
        print([row["question"] for _, row in published_rows(data)])
    except DataError as error:
        print(error)
"""
"""Puts a data set where `datasets` keeps what it downloaded as `org/sums`, and reads it."""


def test_offline_the_cache_is_read_and_a_pinned_commit_is_never_another(folder):
    other = COMMIT[::-1]
    revisions = [f"org/sums#{revision}" for revision in (COMMIT, other, "v1.0")]
    lines = [revisions[0], "org/sums@train[1:2]", *revisions[1:], "org/new"]
    file = str(folder / "main" / "train-00000-of-00002.parquet")
    run = subprocess.run(
        [sys.executable, "-c", OFFLINE, COMMIT, file, json.dumps(lines)],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    pinned, unpinned, part, wrong, tag, new = run.stdout.splitlines()
    assert pinned == "['1+1?', '1+2?']"
    assert unpinned.startswith(f"data org/sums@train[1:2] is commit {COMMIT}; org/sums@train[1:2]#")
    assert part == "['1+2?']"
    for text, revision in ((wrong, other), (tag, "v1.0")):
        assert f"the cached commit {COMMIT} may differ from {revision}" in text
    assert "Couldn't reach 'org/new' on the Hub (OfflineModeIsEnabled)" in new
    assert "run `hf download --repo-type dataset org/new --local-dir FOLDER`" in new
