"""An OpenAI-compatible server on the loopback whose answers a test decides."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from flowzoo.agents.policy import Completion, Policy, Request

Answer = tuple[int, dict[str, str], Any]


def chat(text: str | None, **choice: Any) -> Answer:
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    body = {"choices": [{"message": message, "finish_reason": "stop", **choice}], "usage": usage}
    return 200, {}, body


class Endpoint:
    """A real HTTP server on the loopback whose answers a test decides."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.answer: Callable[[dict[str, Any], int], Answer] = lambda body, count: chat(
            body["messages"][-1]["content"].upper()
        )
        self.active = self.peak = 0
        self.pause = 0.0
        self.lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with endpoint.lock:
                    endpoint.seen.append({"path": self.path, **body})
                    endpoint.headers.append(dict(self.headers))
                    count = len(endpoint.seen)
                    endpoint.active += 1
                    endpoint.peak = max(endpoint.peak, endpoint.active)
                try:
                    status, headers, reply = endpoint.answer(body, count)
                finally:
                    with endpoint.lock:
                        endpoint.active -= 1
                data = (reply if isinstance(reply, str) else json.dumps(reply)).encode()
                try:
                    self.send_response(status)
                    for name, value in {**headers, "Content-Length": str(len(data))}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    size = 1 if endpoint.pause else max(1, len(data))
                    for start in range(0, len(data), size):
                        self.wfile.write(data[start : start + size])
                        time.sleep(endpoint.pause)
                except OSError:
                    pass  # the client hung up, as some tests make it

            def log_message(self, format: str, *args: Any) -> None:
                return None

        class Server(ThreadingHTTPServer):
            request_queue_size = 64
            daemon_threads = True

        self.make = lambda port: Server(("127.0.0.1", port), Handler)
        self.server = self.make(0)
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.serve()

    def serve(self) -> None:
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def die(self) -> None:
        """Refuse connections from now on."""
        self.server.shutdown()
        self.server.server_close()

    def come_back(self) -> None:
        """Serve again, at the same address."""
        self.server = self.make(self.port)
        self.serve()


@contextmanager
def serving() -> Iterator[Endpoint]:
    """An endpoint that is there until the block ends."""
    server = Endpoint()
    try:
        yield server
    finally:
        server.die()


async def generate(policy: Policy, *requests: Request) -> list[Completion]:
    """Completions of a policy, which is closed then."""
    try:
        return await policy.generate(requests)
    finally:
        await policy.close()
