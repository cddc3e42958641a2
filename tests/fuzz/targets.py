"""What reads files and messages of strangers, each with right ones that are spoiled.

A target makes its right content once and has a strategy of wrong ones; `read` must end with a value
or with an error of ours in one line, within its time and memory.
"""

import contextlib
import io
import json
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**70), 10**400, 0.5, 1e308, -1e-308,
    float("nan"), float("inf"), "", "x", "\0", "\ud800", "é" * 300, "../../etc/passwd", "/dev/zero",
    "<img src=x onerror=alert(1)>", "{{ 7 * 7 }}", "%s%n", "a\nb\rc", "x" * 100_000, [], {}, [[]],
    [None], [{}], {"": None}, {"\0": []}, ["x"] * 1000, [1, "1", None], [[1], [1, 2]],
)  # fmt: skip
"""Values in place of right ones."""
DEEP: Any = []
for _ in range(400):
    DEEP = [DEEP]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all nodes of a tree."""
    items = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value) if isinstance(value, list) else items
    return [path, *(place for key, part in inner for place in places(part, (*path, key)))]


def put(tree: Any, path: Sequence[Any], change: Any) -> Any:
    """A tree with a changed node: `change` of its parent and key is called."""
    if not path:
        return change({0: tree}, 0)[0]
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    if len(path) == 1:
        return change(copy, path[0])
    copy[path[0]] = put(copy[path[0]], path[1:], change)
    return copy


def exchanged(parent: Any, key: Any, value: Any) -> Any:
    parent[key] = value
    return parent


def dropped(parent: Any, key: Any) -> Any:
    del parent[key]
    return parent or {0: None}


def renamed(parent: Any, key: Any, name: str) -> Any:
    if isinstance(parent, dict):
        return {(name if other == key else other): value for other, value in parent.items()}
    return [*parent, parent[key]]


@st.composite
def trees(draw: st.DrawFn, tree: Any) -> Any:
    """The tree with one to three changed nodes."""
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(tree)))
        kind = draw(st.sampled_from(("exchange", "exchange", "near", "drop", "rename")))
        if kind == "drop" and path:
            tree = put(tree, path, dropped)
        elif kind == "rename" and path:
            name = draw(st.sampled_from(("", "x", "__class__", "step", "a" * 999)))
            tree = put(tree, path, lambda at, key, name=name: renamed(at, key, name))
        else:
            value = draw(st.sampled_from((*HOSTILE, DEEP)))
            if kind == "near":  # of the right type, or nearly
                value = draw(st.integers(-(2**33), 2**33) | st.floats() | st.text(max_size=20))
            tree = put(tree, path, lambda at, key, value=value: exchanged(at, key, value))
    return tree


@st.composite
def cut_up(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes with one to four of them exchanged, runs cut out, repeated, or put in."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.sampled_from((0, 1, 2, 4, 8, 100, 10**6))))
        times = draw(st.sampled_from((0, 0, 1, 2, 50)))
        new = draw(st.binary(max_size=8) | st.sampled_from((b"\0", b"[" * 5000, b"\xff" * 8)))
        data = data[:start] + data[start:end] * times + new + data[end:]
    return data


def to_json(tree: Any) -> bytes:
    """JSON, of which surrogates are escaped."""
    return json.dumps(tree).encode()


def to_lines(tree: Any) -> bytes:
    """A line of JSON for each item."""
    rows = tree if isinstance(tree, list) else [tree]
    return b"".join(to_json(row) + b"\n" for row in rows)


def to_toml(tree: Any) -> bytes:
    """TOML with inline tables."""
    if not isinstance(tree, dict):
        return _toml(tree).encode("utf-8", "surrogatepass")
    lines = [f"{json.dumps(str(name))} = {_toml(value)}\n" for name, value in tree.items()]
    return "".join(lines).encode("utf-8", "surrogatepass")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(str(k))} = {_toml(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool) or value is None:
        return str(bool(value)).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)


class Files(dict[str, bytes]):
    """Contents by path; Hypothesis prints what it draws from, which would be too long."""

    def __repr__(self) -> str:
        return ", ".join(self)

    def __or__(self, other: Mapping[str, bytes]) -> "Files":
        return Files({**self, **other})


class Target(NamedTuple):
    """A reader of a stranger's content."""

    content: Callable[[], Files]
    """Right files, by their paths in a folder."""
    spoil: Callable[[Files], st.SearchStrategy[Files]]
    """Files that are changed."""
    read: Callable[[Path], None]
    """Read the files in a folder; raises what a user would see as a traceback."""
    seconds: float = 60.0


class TraceError(AssertionError):
    """A command ended otherwise than with status 0, or 2 and one line."""


def command(*line: str) -> Callable[[Path], None]:
    """A reader that runs a command line in the folder."""

    def read(folder: Path) -> None:
        from flowzoo.cli import main

        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            status = main(line)
        lines = err.getvalue().splitlines()
        errors = [number for number, text in enumerate(lines) if text.startswith("error: ")]
        if status not in (0, 2) or (status == 2 and errors != [len(lines) - 1]):
            raise TraceError(f"status {status}: {err.getvalue()[-2000:]}")

    return read


def commands(*lines: str) -> Callable[[Path], None]:
    """A reader that runs command lines, one after the other."""
    readers = [command(*line.split()) for line in lines]

    def read(folder: Path) -> None:
        for reader in readers:
            reader(folder)

    return read


PARSERS: dict[str, tuple[Callable[[bytes], Any], Callable[[Any], bytes]]] = {
    ".json": (json.loads, to_json),
    ".jsonl": (lambda data: [json.loads(line) for line in data.splitlines()], to_lines),
}


@st.composite
def changed(draw: st.DrawFn, files: Files, only: Sequence[str] = ()) -> Files:
    """The files with one of them changed, by its values or by its bytes."""
    name = draw(st.sampled_from(sorted(only or files)))
    data = files[name]
    suffix = Path(name).suffix
    if suffix in PARSERS and draw(st.integers(0, 3)):
        parse, write = PARSERS[suffix]
        return files | {name: write(draw(trees(parse(data))))}
    return files | {name: draw(cut_up(data))}


def written(folder: Path, skip: Sequence[str] = (".lock", "tensorboard")) -> Files:
    """All files of a folder."""
    return Files(
        (str(path.relative_to(folder)), path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not set(skip) & set(path.relative_to(folder).parts)
    )


# -- run folders and transcripts -------------------------------------------------------------------


@cache
def planted_run() -> Files:
    """A run that was planted."""
    from baselines.report.conftest import plant

    with tempfile.TemporaryDirectory() as folder:
        plant(Path(folder, "run"), items=6, course=(0.4, 0.6), every=2, gradients=True)
        return written(Path(folder))


@cache
def trained_run() -> Files:
    """A run of one step."""
    line = "train single --steps 1 --problems 2 --samples 2 --eval-problems 2 --out run"
    with tempfile.TemporaryDirectory() as folder:
        command(*line.split())(Path(folder))
        return written(Path(folder))


@cache
def evaluation() -> Files:
    """An evaluation of a script."""
    line = "eval voting --policy scripted:0.6 --n 3 --options level=1-3 --out run"
    with tempfile.TemporaryDirectory() as folder:
        command(*line.split())(Path(folder))
        return written(Path(folder))


def of_checkpoint(files: Files) -> st.SearchStrategy[Files]:
    """Spoil what a command reads of a checkpoint, but seldom the large weights."""
    return changed(files, [name for name in files if "step-00000001" in name])


# -- TOML ------------------------------------------------------------------------------------------

TABLES: dict[str, tuple[Any, str]] = {
    "matrix": (
        {
            "settings": {"workflow": "single", "steps": 1, "problems": 2, "samples": 2, "lr": 1e-4},
            "title": "A matrix", "seeds": [0, 1],
            "cells": [{"task": ["math"], "algorithm": ["grpo", "magrpo"], "sharing": ["shared"]}],
        },
        "matrix file.toml --dry-run",
    ),
    "leaderboard": (
        {
            "settings": {"n": 2, "temperature": 1.0, "options": ["level=1-3"]},
            "cells": [{"workflow": ["single"], "policy": ["scripted:0.5"], "task": ["math"]}],
        },
        "leaderboard file.toml --dry-run",
    ),
    "prompts": (
        {"generator": {"user": "Do {problem}", "system": "x"}},
        "prompts voting --prompts file.toml",
    ),
    "settings": (
        {"workflow": "single", "steps": 0, "problems": 2, "eval_problems": 2, "lr": 0.1,
         "sharing": ["shared"], "eval_at": [0], "max_tokens": 8},
        "train --config file.toml --steps 0 --problems 2 --samples 2 --eval-problems 2 "
        "--max-tokens 8 --out run",
    ),
}  # fmt: skip
"""Right tables, and the commands that read them."""


def table(content: Any) -> Callable[[], Files]:
    return lambda: Files({"file.toml": to_toml(content)})


def spoiled_table(content: Any) -> Callable[[Files], st.SearchStrategy[Files]]:
    def spoil(files: Files) -> st.SearchStrategy[Files]:
        texts = trees(content).map(to_toml) | cut_up(files["file.toml"])
        return texts.map(lambda text: Files({"file.toml": text}))

    return spoil


# -- models ----------------------------------------------------------------------------------------


@cache
def gguf_model() -> Files:
    """A small GGUF file."""
    from agents.test_gguf import write

    with tempfile.TemporaryDirectory() as folder:
        return Files({"model.gguf": write(Path(folder, "model.gguf")).read_bytes()})


def spoiled_gguf(files: Files) -> st.SearchStrategy[Files]:
    """Spoil the header, where all numbers and names are."""
    data = files["model.gguf"]
    size = min(len(data), 30_000)
    numbers = st.sampled_from((0, 1, 9, 255, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1))

    @st.composite
    def numbered(draw: st.DrawFn) -> bytes:
        start = draw(st.integers(0, 40) | st.integers(0, size))
        number = struct.pack("<Q", draw(numbers))[: draw(st.sampled_from((1, 4, 8)))]
        return data[:start] + number + data[start + len(number) :]

    texts = numbered() | cut_up(data[:size]).map(lambda head: head + data[size:])
    return texts.map(lambda text: Files({"model.gguf": text}))


def read_model(name: str) -> Callable[[Path], None]:
    """A reader that loads a model."""

    def read(folder: Path) -> None:
        from flowzoo.agents.hf.policy import load_model
        from flowzoo.agents.traits import weights_at
        from flowzoo.errors import FlowzooError

        os.environ["FLOWZOO_CACHE"] = str(folder / "cache")
        for load in (weights_at, partial(load_model, dtype="float32")):
            try:
                load(str(folder / name))
            except FlowzooError as error:
                check_line(error)

    return read


def check_line(error: Exception) -> None:
    """An error of ours has one line."""
    from flowzoo.provenance import error_line

    if "\n" in error_line(error):
        raise TraceError(f"more than a line: {error_line(error)[:500]!r}")


@cache
def model_folder() -> Files:
    """The smallest pocket model."""
    from flowzoo.agents.pocket import pocket_path

    files = written(pocket_path("math"))
    return Files((f"model/{name}", data) for name, data in files.items())


def spoiled_folder(files: Files) -> st.SearchStrategy[Files]:
    """Spoil the JSON files of a model, or the header of its weights."""
    name = "model/model.safetensors"
    data = files[name]
    size = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:size])

    def with_header(text: bytes) -> bytes:
        return struct.pack("<Q", len(text)) + text + data[size:]

    heads = trees(header).map(to_json).map(with_header)
    heads |= cut_up(data[:size]).map(lambda head: head + data[size:])
    texts = [other for other in files if other.endswith((".json", ".jinja"))]
    return heads.map(lambda text: files | {name: text}) | changed(files, texts)


# -- messages --------------------------------------------------------------------------------------

MCP = [
    {"jsonrpc": "2.0", "id": 0, "result": {
        "protocolVersion": "2025-06-18", "capabilities": {"tools": {"listChanged": True}},
        "serverInfo": {"name": "s", "version": "1"}, "instructions": "x"}},
    {"jsonrpc": "2.0", "id": 1, "result": {"tools": [
        {"name": "t", "description": "d", "inputSchema": {
            "type": "object", "properties": {"a": {"type": "string", "enum": ["x"]}},
            "required": ["a"]}, "outputSchema": {"type": "object"}}], "nextCursor": None}},
    {"jsonrpc": "2.0", "id": 2, "result": {
        "content": [{"type": "text", "text": "hello"}], "isError": False,
        "structuredContent": {"a": 1}}},
    {"jsonrpc": "2.0", "method": "notifications/progress", "params": {
        "progressToken": 1, "progress": 0.5, "message": "x"}},
    {"jsonrpc": "2.0", "id": 7, "method": "sampling/createMessage", "params": {
        "messages": [], "maxTokens": 1}},
    {"jsonrpc": "2.0", "id": 2, "error": {"code": -32603, "message": "m", "data": [1]}},
]  # fmt: skip
"""Messages of a server of tools."""
SPEAKER = """
import json, sys
lines = open(sys.argv[1], "rb").read().splitlines(True)
for request in sys.stdin:
    if "id" in json.loads(request):
        if not lines:
            break
        sys.stdout.buffer.write(lines.pop(0))
        sys.stdout.flush()
for line in lines:
    sys.stdout.buffer.write(line)
"""


def spoiled_messages(files: Files) -> st.SearchStrategy[Files]:
    """The messages in their order, and others between them, each of which may be spoiled."""
    usual = [MCP[0], MCP[1], MCP[2]]
    whole = trees(usual).map(to_lines)
    more = st.lists(st.sampled_from(MCP), max_size=3).map(lambda rest: to_lines([*usual, *rest]))
    mixed = st.permutations(MCP).map(list).map(to_lines)
    return (whole | whole | more | mixed | cut_up(files["lines"])).map(
        lambda text: Files({"lines": text})
    )


def read_messages(folder: Path) -> None:
    """Ask a server that says the lines of a file."""
    from flowzoo.adapters.mcp_tools import McpTools, close_servers
    from flowzoo.envs.tools import ToolCall
    from flowzoo.errors import FlowzooError

    words = (sys.executable, "-I", "-S", "-c", SPEAKER, str(folder / "lines"))
    source = McpTools(words, 2.0)
    try:
        source.tools()
        (text,) = source.use([ToolCall("0", "t", {"a": "x"})])
        assert isinstance(text, str)
    except FlowzooError as error:
        check_line(error)
    finally:
        close_servers()


PROGRAM = """
import json, os, sys
out, err, status = json.load(open(sys.argv[1]))
os.write(1, bytes.fromhex(out)); os.write(2, bytes.fromhex(err))
os.kill(os.getpid(), -status) if status < 0 else os._exit(status)
"""


def spoiled_program(files: Files) -> st.SearchStrategy[Files]:
    """What a program writes to its streams, and how it ends."""
    texts = st.binary(max_size=200) | st.text(max_size=50).map(
        lambda text: text.encode("utf-8", "surrogatepass")
    )
    texts |= st.sampled_from((b"\\boxed{1}", b"[redacted]", b"\xff" * 2000, b"9" * 300_000))
    ends = st.integers(0, 255) | st.sampled_from((0, 0, -6, -9, -11, -15))
    rows = st.tuples(texts.map(bytes.hex), texts.map(bytes.hex), ends)
    return rows.map(lambda row: Files({"program.json": to_json(row)}))


def read_program(folder: Path) -> None:
    """Play an episode of a program that writes what a file says."""
    from agent_programs import play_together

    from flowzoo.envs.external.program import OpenAIProgram

    words = (sys.executable, "-I", "-S", "-c", PROGRAM, str(folder / "program.json"))
    (episode,) = play_together(OpenAIProgram(words, roles="writer", seconds=20))
    outcome = episode.finished()
    json.loads(json.dumps([outcome.answer, outcome.facts]))
    assert outcome.facts["ended"] in ("answer", "crash", "output")


TARGETS: dict[str, Target] = {
    "run": Target(planted_run, changed, commands("report run --out page.html")),
    "trained": Target(
        trained_run, of_checkpoint,
        commands("export run --out model", "train single --steps 1 --problems 2 --samples 2 "
                 "--eval-problems 2 --out run"),
    ),
    "transcripts": Target(
        evaluation, changed,
        commands("report run --out page.html", "regrade run", "dataset run --out data"),
    ),
    **{
        name: Target(table(content), spoiled_table(content), commands(line))
        for name, (content, line) in TABLES.items()
    },
    "gguf": Target(gguf_model, spoiled_gguf, read_model("model.gguf")),
    "model": Target(model_folder, spoiled_folder, read_model("model")),
    "mcp": Target(lambda: Files({"lines": to_lines(MCP)}), spoiled_messages, read_messages),
    "program": Target(Files, spoiled_program, read_program),
}  # fmt: skip


@contextmanager
def folder_with(files: Files) -> Iterator[Path]:
    """A folder with the files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        yield folder
