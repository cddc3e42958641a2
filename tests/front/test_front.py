"""The front: requests, connections, the waiting line."""

import asyncio
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import takewhile
from typing import Any
from urllib.parse import urlsplit

import pytest
from processes import wait_for
from served import Gate, serving

from flowzoo.agents.policy_map import PolicyMap
from flowzoo.envs import make_workflow
from flowzoo.envs.door.server import door
from flowzoo.errors import UsageError
from flowzoo.front.front import Front, is_local
from flowzoo.front.line import WaitingLine
from flowzoo.front.refusal import ClientGoneError, RefusalError
from flowzoo.front.request import HttpReply, HttpRequest, json_reply
from flowzoo.front.server import FrontServer, bind

BIG = b"x" * 2**25


class Trial(Front):
    """Answers with much, with a fault, or when it is told to."""

    def __init__(self) -> None:
        super().__init__(
            {"GET /big": self._big, "POST /fault": self._fault, "GET /held": self._held}
        )
        self.may_answer = threading.Event()

    def gauges(self) -> dict[str, float]:
        """A count of our own."""
        return {"trials_total": 7}

    async def _big(self, request: HttpRequest) -> HttpReply:
        return HttpReply(200, BIG, "text/plain")

    async def _fault(self, request: HttpRequest) -> HttpReply:
        raise ValueError((await request.body(10**6)).decode())

    async def _held(self, request: HttpRequest) -> HttpReply:
        while not self.may_answer.is_set() and not request.departure.done():
            await asyncio.sleep(0.01)
        return json_reply(200, {})


@contextmanager
def listening(front: Trial) -> Iterator[int]:
    """The port of a front, until the end of the block."""
    server = FrontServer(front, bind("127.0.0.1", 0), grace_s=1)
    thread = threading.Thread(target=lambda: asyncio.run(server.listen()))
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield server.socket.getsockname()[1]
    finally:
        front.may_answer.set()
        server.stop()
        thread.join(30)
    assert not thread.is_alive()


def ask(port: int, method: str, path: str, body: Any = None, **fields: str) -> tuple[int, Any, str]:
    """Status, header and text of an answer."""
    asker = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    asker.request(method, path, body, fields)
    reply = asker.getresponse()
    text = reply.read().decode()
    asker.close()
    return reply.status, reply.headers, text


def sent(port: int, request: bytes) -> socket.socket:
    """A connection on which a request was sent."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall(request)
    return connection


def busy(front: Trial) -> int:
    """Number of requests that are being answered."""
    return sum(not connection.is_idle for connection in set(front.connections))


def test_a_client_that_leaves_ends_the_request_that_is_answered_and_those_behind_it():
    front = Trial()
    with listening(front) as port:
        connection = sent(port, b"GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)
        wait_for(lambda: busy(front) == 1)
        connection.close()
        wait_for(lambda: not front.connections)
        wait_for(lambda: front.tally.statuses.total() == 1)
    assert front.tally.statuses.total() == 1


def test_idle_connections_make_room_and_busy_ones_do_not(monkeypatch):
    monkeypatch.setattr("flowzoo.front.connection.HEAD_S", 600.0)
    front = Trial()
    front.most_connections = 3
    with listening(front) as port:
        idle = [sent(port, b"GET") for _ in range(3)]
        wait_for(lambda: len(front.connections) == 3)
        assert ask(port, "GET", "/health")[0] == 200
        wait_for(lambda: front.tally.drops["no room"] == 1)
        held = list[socket.socket]()
        for count in range(1, 4):
            held.append(sent(port, b"GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            wait_for(lambda count=count: busy(front) == count)  # type: ignore[misc]
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300000\r\n\r\n"
        for request in (b"", head + b"x" * 300_000):
            with sent(port, request) as refused:
                time.sleep(0.1)  # what is unread of the request must not reset the connection
                text = b"".join(iter(partial(refused.recv, 4096), b""))
            assert text.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1" in text
        assert b"too_many_connections" in text
        front.may_answer.set()
        for connection in (*idle, *held):
            connection.close()
        wait_for(lambda: not front.connections)
        assert ask(port, "GET", "/health")[0] == 200


def test_a_client_that_does_not_read_is_dropped_and_a_slow_one_is_not(monkeypatch):
    monkeypatch.setattr("flowzoo.front.connection.STALL_S", 0.5)
    front = Trial()
    with listening(front) as port:
        request = b"GET /big HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with sent(port, request) as still, sent(port, request) as slow:
            count = 0
            while count < len(BIG):
                part = slow.recv(2**20)
                assert part
                count += len(part)
                threading.Event().wait(0.02)
            wait_for(lambda: front.tally.drops["slow reader"] == 1)
            still.settimeout(1)
        assert front.tally.statuses[499] + front.tally.statuses[200] >= 1


def test_the_rest_of_a_refused_body_is_waited_for_though_not_for_long(monkeypatch):
    monkeypatch.setattr("flowzoo.front.connection.HEAD_S", 0.4)
    front = Trial()
    with listening(front) as port:
        head = b"POST /none HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
        with sent(port, head) as connection:
            assert b"404" in connection.makefile("rb").read()  # to the end
        assert front.tally.drops["slow body"] == 1
        with sent(port, head) as connection:
            answers = connection.makefile("rb")
            assert b"404" in answers.readline()
            connection.sendall(b"x" * 100 + b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
            assert b"200 OK" in answers.read()


def test_a_fault_is_an_error_in_openai_s_format_without_secrets_in_it_or_in_the_log(
    monkeypatch, caplog
):
    monkeypatch.setenv("WANDB_API_KEY", "a-key-of-forty-letters")
    with listening(Trial()) as port:
        status, _, text = ask(port, "POST", "/fault", "it is a-key-of-forty-letters")
    assert status == 500
    assert json.loads(text)["error"]["code"] == "server_error"
    (record,) = caplog.records
    assert "ValueError: it is [redacted]" in record.getMessage()
    for where in (text, caplog.text):
        assert "a-key-of-forty-letters" not in where
    refusal = RefusalError(400, "x", "no a-key-of-forty-letters", "a-key-of-forty-letters")
    assert "forty" not in json.dumps(refusal.body())


def test_health_metrics_and_other_addresses():
    front = Trial()
    with listening(front) as port:
        assert ask(port, "GET", "/health")[2] == '{"status": "ok"}'
        front.ending = True
        assert ask(port, "GET", "/health")[0] == 503
        status, headers, _ = ask(port, "DELETE", "/big")
        assert (status, headers["Allow"]) == (405, "GET")
        assert ask(port, "GET", "/secret-looking-path")[0] == 404
        text = ask(port, "GET", "/metrics")[2]
        for line in (
            'flowzoo_http_requests_total{status="405"} 1',
            'flowzoo_http_requests_total{status="404"} 1',
            "flowzoo_http_connections 1",
            "# TYPE flowzoo_trials_total counter",
            "flowzoo_trials_total 7",
            "flowzoo_http_request_seconds_count 4",
        ):
            assert line in text.splitlines()
        assert "secret-looking" not in text


def test_a_public_front_takes_names_and_pages_of_others():
    front = Trial()
    with listening(front) as port:
        elsewhere = {"Host": "flowzoo.example", "Origin": "http://flowzoo.example"}
        assert ask(port, "GET", "/health", **elsewhere)[0] == 403
        front.is_public = True
        assert ask(port, "GET", "/health", **elsewhere)[0] == 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [("localhost:1", True), ("127.3.2.1", True), ("[::1]:80", True), ("LocalHost", True),
     ("localhost.", False), ("::1", False), ("", False), ("127.0.0.1.nip.io", False)],
)  # fmt: skip
def test_names_of_this_machine(host, expected):
    assert is_local(host) == expected


def test_an_address_that_others_reach_needs_a_key():
    with pytest.raises(UsageError, match="set FLOWZOO_API_KEY"):
        bind("0.0.0.0", 0)
    with bind("0.0.0.0", 0, has_key=True) as opened:
        assert opened.getsockname()[1] > 0


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


def never() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


async def test_slots_are_given_in_the_order_of_coming_and_a_large_request_is_not_overtaken():
    line, order = WaitingLine(2, 9), list[int]()
    await line.enter(2, never(), 9)

    async def come(number: int, count: int) -> None:
        await line.enter(count, never(), 9)
        order.append(number)

    tasks = [asyncio.create_task(come(number, count)) for number, count in enumerate((2, 1, 1))]
    await asyncio.sleep(0)
    line.leave(1, 1.0)
    await asyncio.sleep(0.01)
    assert order == []
    line.leave(1, 1.0)
    await asyncio.sleep(0.01)
    assert order == [0]
    line.leave(2, 1.0)
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2]
    assert line.used == 2


async def test_the_seconds_until_a_retry_are_measured():
    line = WaitingLine(4, 2)
    assert line.retry_s == 1
    await line.enter(4, never(), 9)
    line.leave(1, 20.0)
    line.used += 1
    waiting = [asyncio.create_task(line.enter(1, never(), 60)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(RefusalError) as refused:
        await line.enter(1, never(), 9)
    # Six answers of 20 s before it, four at a time.
    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "30"})
    line.leave(1, 1e9)
    assert line.retry_s == 600
    line.close(RefusalError(503, "server_ending", "The server is ending."))
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [getattr(result, "code", None) for result in results] == [None, "server_ending"]


@pytest.mark.parametrize("end", ["waits in vain", "leaves", "is cancelled", "leaves with a slot"])
async def test_who_gets_no_slot_leaves_its_place_to_the_next(end):
    line, gone = WaitingLine(1, 9), never()
    await line.enter(1, never(), 9)
    first = asyncio.create_task(line.enter(1, gone, 0.05 if end == "waits in vain" else 9))
    second = asyncio.create_task(line.enter(1, never(), 9))
    await asyncio.sleep(0)
    if end == "is cancelled":
        first.cancel()
    elif end != "waits in vain":
        gone.set_result(None)
    if end == "leaves with a slot":  # at the same time
        line.leave(1, 1.0)
    (error,) = await asyncio.gather(first, return_exceptions=True)
    if end == "waits in vain":
        assert isinstance(error, RefusalError)
        assert (error.status, error.headers) == (503, {"Retry-After": "1"})
    else:
        kind = asyncio.CancelledError if end == "is cancelled" else ClientGoneError
        assert isinstance(error, kind)
    if end != "leaves with a slot":
        line.leave(1, 1.0)
    await second
    assert (line.used, len(line.waiting)) == (1, 0)
