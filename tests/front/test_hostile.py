"""Hostile clients at all fronts: each gets its answer, and honest ones are served meanwhile."""

import http.client
import json
import re
import select
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import repeat

import pytest
from front.fronts import SECRETS, FrontProcess
from front.fuzz import fuzz, statuses
from front.hostile import Case, cases

from tools.descriptions import FOLDER, descriptions

CASES = cases()
MOST_GROWTH = 10.0
"""MiB of memory that a case may take."""
HONEST_S = 1.0
"""Seconds in which an honest request is answered."""


def parts_of(case: Case, front: FrontProcess) -> Iterator[bytes]:
    key = front.key.encode()
    authorization = b"Authorization: Bearer %b\r\n" % key if key else b""
    for piece in case.pieces:
        part, count = (piece, 1) if isinstance(piece, bytes) else piece
        yield from repeat(part.replace(b"$AUTH", authorization).replace(b"$KEY", key), count)


def send(connection: socket.socket, case: Case, front: FrontProcess) -> None:
    """Send all pieces, or until the server closes, does not read on or has answered."""
    with suppress(ConnectionError, TimeoutError):
        for part in parts_of(case, front):
            if case.wait_s and select.select([connection], [], [], case.wait_s)[0]:
                return
            connection.sendall(part)


def first_status(connection: socket.socket) -> tuple[int, bytes]:
    """The status and the bytes of what comes first; 0: the connection is closed."""
    text, length = b"", None
    with suppress(ConnectionError):
        while part := connection.recv(2**16):
            text += part
            top, _, body = text.partition(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", top)
            if b"\r\n\r\n" in text and (length is None or len(body) >= int(length[1])):
                break
    if length is not None:
        text = text[: text.index(b"\r\n\r\n") + 4 + int(length[1])]
    return (int(text.split()[1]) if text else 0), text


def outcome(front: FrontProcess, case: Case) -> tuple[int, bytes]:
    """What comes first on the last of the connections of a case."""
    connections = [
        socket.create_connection(("127.0.0.1", front.port), timeout=5)
        for _ in range(case.connections)
    ]
    result = 0, b""
    try:
        for connection in connections:
            connection.settimeout(0.5 if case.ends == "ignores" else 5)
            send(connection, case, front)
            if case.ends == "resets":
                linger = struct.pack("ii", 1, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if case.ends == "shuts":
            connections[-1].shutdown(socket.SHUT_WR)
        if case.ends in ("reads", "shuts"):
            result = first_status(connections[-1])
        elif case.ends == "ignores":
            check_honest(front)  # meanwhile
            time.sleep(0.3)
    finally:
        for connection in connections:
            connection.close()
    return result


def check_honest(front: FrontProcess) -> None:
    """An honest request is answered soon."""
    start = time.monotonic()
    method, path, body = front.honest
    asker = http.client.HTTPConnection("127.0.0.1", front.port, timeout=10)
    headers = {"Authorization": f"Bearer {front.key}"} if front.key else {}
    asker.request(method, path, json.dumps(body) if body else None, headers)
    reply = asker.getresponse()
    text = reply.read()
    asker.close()
    assert reply.status == 200, text
    assert time.monotonic() - start < HONEST_S


def check_clean(text: str) -> None:
    for value in (*SECRETS.values(), "key-of-the-workflow"):
        assert value not in text


def check_case(front: FrontProcess, case: Case) -> None:
    check_honest(front)
    before = front.memory()
    status, text = outcome(front, case)
    if case.ends in ("reads", "shuts"):
        first, is_page = next(parts_of(case, front)), front.kind == "page"
        others = (405,) if is_page and first.startswith(b"POST ") else ()
        assert status in (*case.statuses, *others), (front.kind, text[:500])
    if status >= 400:
        error = json.loads(text.partition(b"\r\n\r\n")[2])["error"]
        assert error["code"]
        assert set(error) == {"message", "type", "param", "code"}
    check_clean(text.decode("latin-1"))
    check_honest(front)
    assert front.memory() - before < MOST_GROWTH, front.kind


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_client_gets_its_answer_and_honest_ones_are_served(fronts, name):
    case = CASES[name]
    with ThreadPoolExecutor() as pool:
        for check in [pool.submit(check_case, fronts[kind], case) for kind in case.fronts]:
            check.result()


def test_no_front_tells_secrets_or_fills_its_log(fronts):
    for kind, front in fronts.items():
        asker = http.client.HTTPConnection("127.0.0.1", front.port, timeout=10)
        asker.request("GET", "/metrics", headers={"Authorization": f"Bearer {front.key}"})
        text = asker.getresponse().read().decode()
        asker.close()
        assert "flowzoo_http_requests_total{" in text
        check_clean(text)
        assert not front.key or front.key not in text
        assert front.log.read_text() == "", kind


@pytest.mark.parametrize("kind", ["serve", "door"])
def test_requests_made_of_a_description_get_no_status_of_the_servers_fault(fronts, kind):
    front = fronts[kind]
    before = statuses(front)
    done = fuzz(front, 15)
    assert done.returncode == 0, done.stdout
    counts = statuses(front)
    assert sum(counts.values()) - sum(before.values()) >= 12
    assert counts[200] > before.get(200, 0)
    assert counts[400] > before.get(400, 0)
    assert not any(status >= 500 and status != 505 for status in counts)


def test_the_published_descriptions_are_what_the_servers_check():
    for name, text in descriptions().items():
        published = (FOLDER / name).read_text("utf-8")
        assert published == text, "python -m tools.descriptions"
