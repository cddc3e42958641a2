"""Bounds on what a request has beside its body, at the door and at `flowzoo serve`."""

import json
import re
import select
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile
from urllib.parse import urlsplit

import pytest
from served import Gate, serving

from flowzoo.agents.policy_map import PolicyMap
from flowzoo.envs import make_workflow
from flowzoo.envs.door.server import door

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
MOST, FIELDS = 2**16, 100


@pytest.fixture(scope="module", params=["door", "serve"])
def address(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    if request.param == "door":
        yield address_of(door().base_url)
        return
    workflow, gate = make_workflow("single"), Gate()
    with serving(workflow, PolicyMap.shared(gate, workflow.role_counts())) as served:
        yield address_of(served.url)


def address_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return str(parts.hostname), parts.port or 0


class Caller:
    """A connection to a server, and the answers that come on it."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=20)
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()
        self.socket.close()

    def send(self, start: bytes, part: bytes = b"", times: int = 0) -> None:
        """Send `start` and then `part` so many times, or until the server closes."""
        with suppress(ConnectionError):
            self.socket.sendall(start)
            for _ in range(times):
                self.socket.sendall(part)

    def answer(self) -> tuple[int, str]:
        """Status and text of the next answer; 0 and "" once the server has closed."""
        head = b""
        with suppress(ConnectionResetError):
            head = b"".join(takewhile(b"\r\n".__ne__, self.file))
        if not head:
            return 0, ""
        length = re.search(rb"content-length: (\d+)", head)
        text = self.file.read(int(length[1])) if length else b""
        return int(head.split()[1]), text.decode()


def models(fill: bytes, path: bytes = b"/v1/models") -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n" + fill + b"\r\n"


@pytest.mark.parametrize(
    ("start", "part"),
    [
        pytest.param(HEAD, b"X-a: b\r\n" * 1000, id="fields"),
        pytest.param(HEAD + b"X-a: ", b"a" * 8000, id="value"),
        pytest.param(HEAD + b"X-a:", b" " * 8000, id="space"),
        pytest.param(HEAD, b"a" * 8000, id="name"),
        pytest.param(b"GET /", b"a" * 8000, id="address"),
        pytest.param(CHUNKED + b"1;", b"a" * 8000, id="size of a chunk"),
        pytest.param(CHUNKED + b"0\r\n", b"X-a: b\r\n" * 1000, id="trailers"),
        pytest.param(CHUNKED + b"0\r\nX-a: ", b"a" * 8000, id="trailer"),
    ],
)
def test_what_does_not_end_is_refused(address, start, part):
    with Caller(address) as caller:
        caller.send(start, part, 1000)
        status, text = caller.answer()
        if status == 401:  # the door looks at the key before it takes a body
            status, text = caller.answer()
        assert status == 431
        assert json.loads(text)["error"]["code"] == "header_too_large"
        assert caller.answer() == (0, "")


@pytest.mark.parametrize("size", [1000, 10**6])
@pytest.mark.parametrize(
    ("head", "is_taken"),
    [
        (models(b"X-a: %b\r\n" % (b"a" * (MOST - 26))), True),
        (models(b"X-a: %b\r\n" % (b"a" * (MOST - 25))), False),
        (models(b"", b"/v1/models?%b" % (b"a" * 60_000)), True),  # uvicorn takes less than 2**16
        (models(b"", b"/v1/models?%b" % (b"a" * MOST)), False),
        (models(b"X-a: b\r\n" * (FIELDS - 1)), True),
        (models(b"X-a: b\r\n" * FIELDS), False),
    ],
    ids=["value", "value+1", "address", "long address", "fields", "fields+1"],
)
def test_the_bounds_are_exact_however_the_bytes_arrive(address, head, is_taken, size):
    with Caller(address) as caller:
        for start in range(0, len(head), size):
            caller.send(head[start : start + size])
        status, _ = caller.answer()
        assert status in ((200, 401) if is_taken else (431,))
        caller.send(models(b""))
        assert caller.answer()[0] == (status if is_taken else 0)


def test_bodies_do_not_count(address):
    body = b'{"model": "none"' + b" " * 200_000 + b"}"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)  # five more bytes each
    plain = HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    with Caller(address) as caller:
        for request in (plain, CHUNKED + chunks + b"0\r\nX-a: b\r\n\r\n", plain):
            caller.send(request)
            assert caller.answer()[0] in (401, 404)
        caller.send(plain + plain + models(b"X-a: b\r\n"))
        assert caller.answer()[0] in (401, 404)
        assert caller.answer()[0] in (401, 404)
        assert caller.answer()[0] in (401, 200)


def test_what_is_no_http_and_a_client_that_waits_for_leave_are_answered_as_ever(address):
    with Caller(address) as caller:
        caller.send(b"no HTTP\r\n\r\n")
        status, text = caller.answer()
        assert (status, json.loads(text)["error"]["code"]) == (400, "invalid_http")
        assert caller.answer() == (0, "")
    with Caller(address) as caller:
        caller.send(HEAD + b"Expect: 100-continue\r\nContent-Length: 17\r\n\r\n")
        status, _ = caller.answer()
        assert status in (100, 401)
        if status == 100:
            caller.send(b'{"model": "none"}')
            assert caller.answer()[0] == 404


@pytest.mark.parametrize(
    "start", [b"", b"G", b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-a: "]
)
def test_a_head_that_comes_slowly_is_refused(address, monkeypatch, start):
    monkeypatch.setattr("flowzoo.front.connection.HEAD_S", 0.3)
    with Caller(address) as caller:
        caller.send(start)
        while not select.select([caller.socket], [], [], 0.05)[0]:
            caller.send(b"a" if start.endswith(b" ") else b"")
        status, text = caller.answer()
        assert (status, json.loads(text)["error"]["code"]) == (408, "timeout")
        assert caller.answer() == (0, "")


def test_a_head_may_wait_while_the_request_before_it_is_answered(monkeypatch):
    monkeypatch.setattr("flowzoo.front.connection.HEAD_S", 1.0)
    workflow, gate = make_workflow("single"), Gate()
    chat = {"model": workflow.name, "messages": [{"role": "user", "content": "Compute 1+1."}]}
    body = json.dumps(chat).encode()
    policies = PolicyMap.shared(gate, workflow.role_counts())
    with serving(workflow, policies) as served, Caller(address_of(served.url)) as caller:
        caller.send(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body) + b"GET /v1")
        time.sleep(1.8)
        gate.open.set()
        assert caller.answer()[0] == 200
        time.sleep(0.4)  # more than is left of the time that began anew while it waited
        caller.send(b"/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert caller.answer()[0] == 200
