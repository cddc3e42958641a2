"""Our own episodes of scripted policies, and a server that says again what was said in them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

from flowzoo.agents import PolicyMap
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.envs import EpisodeRecord, make_workflow

Said = dict[str, list[str]]
"""Prompt -> the replies to it, in the order in which they were given."""


def recorded(
    name: str, problems: int, samples: int = 1, split: str = "test"
) -> tuple[list[EpisodeRecord], Said]:
    """Episodes of a workflow whose roles are right in six of ten cases."""
    workflow = make_workflow(name)
    policy_map = PolicyMap.shared(ScriptedPolicy(workflow, 0.6), workflow.role_counts())
    jobs = [
        EpisodeJob(problem, sample)
        for problem in distinct_problems(workflow.task, split, problems)
        for sample in range(samples)
    ]
    records = Rollout(workflow, policy_map).run(jobs)
    said: Said = defaultdict(list)
    for record in records:
        for call in record.calls:
            said[call.messages[-1]["content"]].append(call.reply)
    return records, said


@contextmanager
def serving(said: Said) -> Iterator[tuple[str, Counter[str]]]:
    """An endpoint that says `said` again; its URL, and how often each model was asked."""
    asked: Counter[str] = Counter()
    lock = Lock()

    def message(body: dict[str, Any]) -> dict[str, Any]:
        content = body["messages"][-1]["content"]
        if not isinstance(content, str):
            content = "".join(part["text"] for part in content)
        with lock:
            asked[body["model"]] += 1
            return {"content": said[content].pop(0)}

    with answering(message) as url:
        yield url, asked


@contextmanager
def answering(message: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[str]:
    """An endpoint of OpenAI's kind on loopback, which answers by a function; its URL."""

    class Answers(BaseHTTPRequestHandler):
        """Answers a chat with the message that the function returns for the request's body."""

        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            """One completion."""
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reply = {"role": "assistant", **message(body)}
            answer = json.dumps(
                {
                    "id": "said", "object": "chat.completion", "created": 0, "model": body["model"],
                    "choices": [{"index": 0, "finish_reason": "stop", "message": reply}],
                    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
                }
            ).encode()  # fmt: skip
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
