"""A connection to a server that is closed while it answers: nobody waits for ever."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("httpx", reason="a server needs flowzoo[openai]")
pytest.importorskip("torch", reason="the engine needs flowzoo[train]")

from flowzoo.agents import Sampling
from flowzoo.agents.vllm.backend import EngineDeadError, GenerationRequest
from flowzoo.agents.vllm.remote import ServerBackend


class SlowServer:
    """Answers what a client asks at the start, and nothing that is longer than one token."""

    def __init__(self) -> None:
        self.asked, self.ended = threading.Event(), threading.Event()
        slow = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.say({"data": [{"id": "model"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if body["max_tokens"] > 1:
                    slow.asked.set()
                    slow.ended.wait()
                self.say(
                    {"choices": [{"logprobs": {"top_logprobs": [{"a": -body["temperature"]}]}}]}
                )

            def say(self, value: Any) -> None:
                data = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Say nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.handle_error = lambda request, client_address: None  # the client has gone
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server() -> Iterator[SlowServer]:
    slow = SlowServer()
    yield slow
    slow.ended.set()
    slow.http.shutdown()
    slow.http.server_close()


def test_requests_under_way_and_waiting_fail_when_the_connection_is_closed(server):
    url = f"http://127.0.0.1:{server.http.server_address[1]}/v1"
    backend = ServerBackend(url, max_pending=1)
    job = GenerationRequest((1, 2), 0, 8, Sampling(), (0,))
    under_way, waiting = backend.submit([job, job])
    assert server.asked.wait(120)
    backend.close()
    for future in (under_way, waiting):
        with pytest.raises(EngineDeadError):
            future.result(timeout=120)
