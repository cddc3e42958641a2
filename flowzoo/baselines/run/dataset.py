"""Recorded episodes as a data set of two Parquet tables, for `datasets` and TRL."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from flowzoo.aliases import DataRecord
from flowzoo.baselines.run.ledger import check_transcripts
from flowzoo.errors import UsageError, missing_extra
from flowzoo.files import distinct_names, is_vacant, read_rows, writing

Kind = Literal["text", "whole", "number", "flag", "messages"]


class Column(NamedTuple):
    """A column of a table."""

    name: str
    kind: Kind
    meaning: str


_ORIGIN = (
    Column(
        "source", "text", "folder of the episode: its name, or the end of its path if names repeat"
    ),
    Column("purpose", "text", "`train` or `eval`: sampled for training, or to measure"),
    Column("step", "whole", "the run's step; null outside of a run"),
    Column("workflow", "text", "the workflow's versioned name"),
    Column("task", "text", "the task's name"),
    Column("problem", "text", "id of the problem, with its split"),
    Column("episode", "text", "id of the episode, unique within source, purpose and step"),
)
REPLIES = (
    *_ORIGIN,
    Column("agent", "text", "the agent, e.g. `generator_2`"),
    Column("role", "text", "the agent's role"),
    Column("phase", "whole", "index of the phase in the episode, from 0"),
    Column("slot", "whole", "index within the phase, from 0"),
    Column("turn", "whole", "number of earlier asks of the agent"),
    Column("policy", "text", "name of the policy that answered"),
    Column("prompt", "messages", "messages of the prompt"),
    Column("tools", "text", "offered tools, as JSON; null: none"),
    Column("tool_messages", "text", "the prompt with tool calls, as JSON; null: it has none"),
    Column("completion", "messages", "its reply, one message of the assistant, thoughts included"),
    Column("strict", "flag", "the strict parser could read the reply"),
    Column("lenient", "flag", "the lenient parser could"),
    Column("role_score", "number", "quality at its role's job, 0 to 1; null: undefined"),
    Column("reward", "number", "reward of the reply"),
    Column("team", "number", "the team's part of the reward before weighting; null: none"),
    Column("local", "number", "the part of its own job; null: none"),
    Column("format", "number", "the part for readability; null: none"),
    Column("score", "number", "the episode's score"),
    Column("finish", "text", "`stop`, `length` or `scripted`"),
    Column("prompt_tokens", "whole", "tokens of the prompt; null: not counted"),
    Column("output_tokens", "whole", "tokens of the reply; null: not counted"),
    Column("shortened", "whole", "tokens (or characters) removed from a long prompt"),
)
EPISODES = (
    *_ORIGIN,
    Column("text", "text", "the problem"),
    Column("gold", "text", "its reference answer"),
    Column("answer", "text", "the team's answer; null: none"),
    Column("score", "number", "the episode's score: 0 to 1, or that of `--reward`"),
    Column("truncated", "flag", "it was cut off by `max_cycles`"),
    Column("facts", "text", "the workflow's facts, as JSON"),
    Column("replies", "whole", "number of replies"),
    Column("output_tokens", "whole", "counted tokens of all replies; null: none were"),
)


class Written(NamedTuple):
    """Size of a data set."""

    episodes: int
    replies: int


class _File(NamedTuple):
    """A file of episodes, and the values of its rows that name their origin."""

    path: Path
    source: str
    purpose: str
    step: int | None


def write_dataset(sources: Sequence[Path], out: Path) -> Written:
    """Write the episodes of folders of `flowzoo eval --out` and of run directories to `out`."""
    if not is_vacant(out):
        raise UsageError(f"--out {out} exists already: name a new folder.")
    names = distinct_names(sources)
    if len(set(names)) < len(names):
        raise UsageError(f"a folder is named twice among {', '.join(map(str, sources))}")
    files = [
        file
        for source, name in zip(sources, names, strict=True)
        for file in _files_of(source, name)
    ]
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that the rename is within one file system.
        partial = Path(tempfile.mkdtemp(prefix=f"{out.name}.", dir=out.parent))
        try:
            partial.chmod(0o755)
            written = _write_tables(files, partial)
            (partial / "README.md").write_text(_card(written), encoding="utf-8")
            partial.replace(out)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return written


def _files_of(source: Path, name: str) -> list[_File]:
    if (source / "episodes.jsonl").is_file():
        return [_File(source / "episodes.jsonl", name, "eval", None)]
    files = [
        _File(path, name, match[1], int(match[2]))
        for path in sorted((source / "transcripts").glob("*.jsonl"))
        if (match := re.fullmatch(r"(train|eval)-(\d+)\.jsonl", path.name))
    ]
    if not files:
        raise UsageError(
            f"{source} holds no episodes: expected episodes.jsonl (of `flowzoo eval --out`) or "
            "transcripts/ (of a training run)."
        )
    check_transcripts(source, [file.path for file in files])
    return files


def _write_tables(files: Sequence[_File], folder: Path) -> Written:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise missing_extra("pyarrow", "data", "writing a data set") from error
    schemas = [_schema(columns) for columns in (EPISODES, REPLIES)]
    paths = [folder / name / "train.parquet" for name in ("episodes", "replies")]
    for path in paths:
        path.parent.mkdir()
    episodes = replies = 0
    # File by file, so that memory does not grow with the length of a run.
    with (
        parquet.ParquetWriter(paths[0], schemas[0], compression="zstd") as of_episodes,
        parquet.ParquetWriter(paths[1], schemas[1], compression="zstd") as of_replies,
    ):
        for file in files:
            rows = read_rows(file.path, lambda row, file=file: _rows(row, file), "an episode")
            if rows:
                both = (
                    [episode for episode, _ in rows],
                    [reply for _, more in rows for reply in more],
                )
                of_episodes.write_table(arrow.Table.from_pylist(both[0], schemas[0]))
                of_replies.write_table(arrow.Table.from_pylist(both[1], schemas[1]))
                episodes, replies = episodes + len(both[0]), replies + len(both[1])
    return Written(episodes, replies)


def _schema(columns: Sequence[Column]) -> Any:
    import pyarrow as arrow

    message = arrow.struct([("role", arrow.string()), ("content", arrow.string())])
    kinds = {
        "text": arrow.string(),
        "whole": arrow.int64(),
        "number": arrow.float64(),
        "flag": arrow.bool_(),
        "messages": arrow.list_(message),
    }
    return arrow.schema([(column.name, kinds[column.kind]) for column in columns])


def _rows(row: DataRecord, file: _File) -> tuple[dict[str, object], list[dict[str, object]]]:
    """Make the rows of an episode and of its replies from a line of the file."""
    origin = {
        "source": file.source,
        "purpose": file.purpose,
        "step": file.step,
        **{name: row[name] for name in ("workflow", "task", "problem", "episode")},
    }
    replies = [{**origin, **_reply(call), "score": row["score"]} for call in row["calls"]]
    counts = [count for call in row["calls"] if (count := _count(call, "output")) is not None]
    answer = row["answer"]
    episode = {
        **origin,
        "text": encodable(row["text"]),
        "gold": encodable(row["gold"]),
        "answer": answer if answer is None else encodable(answer),
        "score": row["score"],
        "truncated": row["truncated"],
        "facts": json.dumps(row["facts"]),
        "replies": len(replies),
        "output_tokens": sum(counts) if counts else None,
    }
    return episode, replies


_AS_IT_IS = (
    "agent", "role", "phase", "slot", "turn", "policy", "strict", "lenient", "role_score", "reward",
    "finish", "shortened",
)  # fmt: skip


def _reply(call: DataRecord) -> dict[str, object]:
    return {
        **{name: call[name] for name in _AS_IT_IS},
        **{part: call["parts"].get(part) for part in ("team", "local", "format")},
        **{f"{part}_tokens": _count(call, part) for part in ("prompt", "output")},
        "prompt": [
            {"role": message["role"], "content": encodable(message["content"])}
            for message in call["messages"]
        ],
        "tools": json.dumps(call["tools"]) if call.get("tools") else None,
        "tool_messages": json.dumps(call["messages"])
        if any(len(message) > 2 for message in call["messages"])
        else None,
        "completion": [{"role": "assistant", "content": encodable(call["reply"])}],
    }


def encodable(text: str) -> str:
    """A text with halves of surrogate pairs, which an endpoint may send, as their escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _count(call: DataRecord, part: str) -> int | None:
    """Number of tokens of the prompt or the output; None if they were not counted."""
    name = f"{part}_tokens"
    # Evaluations keep the ids, runs the number.
    if name in call:
        return call[name]
    return len(call[f"{part}_ids"]) or (call.get("usage") or {}).get(part)


def _card(written: Written) -> str:
    lines = ["---", "configs:"]
    for name in ("replies", "episodes"):
        lines += [f"- config_name: {name}", f"  data_files: {name}/train.parquet"]
        lines += ["  default: true"] if name == "replies" else []
    lines += ["---", "", "# Episodes of LLM workflows", ""]
    lines += [f"{written.episodes:,} episodes with {written.replies:,} replies, by flowzoo.", ""]
    for name, columns in (("replies", REPLIES), ("episodes", EPISODES)):
        lines += [f"## {name}", "", *table_of(columns), ""]
    return "\n".join(lines)


def table_of(columns: Sequence[Column]) -> Iterator[str]:
    """The lines of a table in Markdown that says what the columns are."""
    kinds = {"text": "string", "whole": "int64", "number": "float64", "flag": "bool"}
    yield from ("| column | type | |", "|---|---|---|")
    for name, kind, meaning in columns:
        yield f"| `{name}` | {kinds.get(kind, 'list of `{role, content}`')} | {meaning} |"
