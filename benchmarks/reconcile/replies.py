"""Stored replies: written once, scored by every harness; and the endpoint that says them again."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.reconcile.forms import FORMS
from flowzoo.agents.evaluation.evaluate import read_episodes


class PublicSet(NamedTuple):
    """A public set of problems."""

    task: str
    file: str
    """In the folder of public data."""
    text: str
    """Column of the problem's text."""
    rows: int
    """How many rows, from the first on, have replies in every form."""


SETS = {
    "GSM8K": PublicSet("math", "gsm8k/test.jsonl", "question", 30),
    "MATH-500": PublicSet("math", "math500/test.jsonl", "problem", 12),
    "HumanEval": PublicSet("code", "humaneval/HumanEval.jsonl", "prompt", 12),
}
Stored = dict[str, Any]
"""A reply: `set`, `source` (`forms` or a model), `row` from 0, `form`, `right`, `reply`, `doc`."""


def rows_of(data: Path, name: str, count: int | None = None) -> list[dict[str, Any]]:
    """The first rows of a set."""
    with (data / SETS[name].file).open(encoding="utf-8") as file:
        return [json.loads(line) for line in islice(file, count)]


def replies_in_forms(data: Path) -> Iterator[Stored]:
    """Every form of a reply to the first rows of each set."""
    for name, of_set in SETS.items():
        for number, doc in enumerate(rows_of(data, name, of_set.rows)):
            for form, text, right in FORMS[name](doc):
                yield {
                    "set": name, "source": "forms", "row": number, "form": form, "right": right,
                    "reply": text, "doc": doc,
                }  # fmt: skip


def replies_of_model(data: Path, name: str, source: str, evaluation: Path) -> Iterator[Stored]:
    """The replies of a model in a folder of `flowzoo eval single --out`."""
    docs = {doc[SETS[name].text].strip(): (number, doc) for number, doc in enumerate(
        rows_of(data, name))}  # fmt: skip
    for record in read_episodes(evaluation / "episodes.jsonl"):
        number, doc = next(
            place for text, place in docs.items() if text in record.calls[0].messages[-1]["content"]
        )
        yield {
            "set": name, "source": source, "row": number, "form": "", "right": None,
            "reply": record.calls[0].reply, "doc": doc,
        }  # fmt: skip


@contextmanager
def stored_endpoint(replies: list[Stored]) -> Iterator[str]:
    """Serve the replies by OpenAI's API on the loopback; its URL.

    A prompt that holds a problem's text gets the problem's replies, one after the other.
    """
    waiting: Mapping[str, list[str]] = defaultdict(list)
    for stored in replies:
        waiting[stored["doc"][SETS[stored["set"]].text].strip()].append(stored["reply"])
    lock = threading.Lock()

    class StoredHandler(BaseHTTPRequestHandler):
        """Answers a request with the next reply."""

        def do_POST(self) -> None:
            """Find the problem in the prompt."""
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt = body["messages"][-1]["content"]
            with lock:
                text = next(said.pop(0) for text, said in waiting.items() if text in prompt)
            choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            data = json.dumps({"choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    class StoredServer(ThreadingHTTPServer):
        """Keeps as many connections waiting as an evaluation opens."""

        request_queue_size = 1024

    server = StoredServer(("127.0.0.1", 0), StoredHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
