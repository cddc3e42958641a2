"""What hostile clients send: a table of cases for every front.

A case is what is sent in pieces and the statuses that may come first; 0: the server closes without
one; a page may refuse every POST. `$AUTH` stands for the header of a right key, where the front has
keys, and `$KEY` for the key.
"""

from typing import NamedTuple

GET = b"GET /v1/models HTTP/1.1\r\n"
HOST = b"Host: 127.0.0.1\r\n"
HEAD = GET + HOST + b"$AUTH"
POST = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"$AUTH"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
FINE = (200, 404)
"""An honest request: a page has no such address."""
BAD_JSON = (400, 404)
"""A door has other models, and says so first."""
KEYS = ("keyed", "door")
LOCAL = ("serve", "door", "page")
JUNK = bytes(range(256)) * 4


class Times(NamedTuple):
    """Bytes that are sent so many times."""

    part: bytes
    count: int


class Case(NamedTuple):
    """What a client sends, and what may come first."""

    pieces: tuple[bytes | Times, ...]
    statuses: tuple[int, ...]
    wait_s: float = 0.0
    """Seconds between pieces."""
    fronts: tuple[str, ...] = LOCAL
    ends: str = "reads"
    """`reads` the first answer; `resets` the connection; `shuts` its sending side, and reads;
    `ignores` what comes for a second."""
    connections: int = 1


def head(fields: bytes, start: bytes = GET + HOST + b"$AUTH") -> bytes:
    """A request without a body."""
    return start + fields + b"\r\n"


def body(text: bytes, fields: bytes = b"") -> bytes:
    """A request with a body."""
    return POST + fields + b"Content-Length: %d\r\n\r\n" % len(text) + text


def cases() -> dict[str, Case]:
    """All cases by name."""
    return {**headers(), **lines(), **names(), **keys(), **lengths(), **bodies(), **manners()}


def headers() -> dict[str, Case]:
    """Headers that are too many, too large, wrong or slow."""
    many, much = 400, b"a" * 8000
    fields = b"X-a: b\r\n" * 1000
    bad = {
        "a NUL in a value": b"X-a: b\0c\r\n",
        "a NUL in a name": b"X\0a: b\r\n",
        "a field without a colon": b"X-a b\r\n",
        "a space before the colon": b"X-a : b\r\n",
        "an empty name": b": b\r\n",
        "a folded value": b"X-a: b\r\n c\r\n",
        "a control character": b"X-a: \x01\x7f\r\n",
        "a bare line feed": b"X-a: b\nX-b: c\r\n",
        "a bare carriage return": b"X-a: b\rX-b: c\r\n",
    }
    return {
        "fields without end": Case((HEAD, Times(fields, many)), (431,)),
        "one endless value": Case((HEAD + b"X-a: ", Times(much, many)), (431,)),
        "one endless space": Case((HEAD + b"X-a:", Times(b" " * 8000, many)), (431,)),
        "one endless name": Case((HEAD, Times(much, many)), (431, 400)),
        "10,000 fields": Case((head(b"X-a: b\r\n" * 10_000),), (431,)),
        "101 fields": Case((head(b"X-a: b\r\n" * 101),), (431,)),
        "a large cookie": Case((head(b"Cookie: " + b"a=b; " * 14_000 + b"\r\n"),), (431,)),
        "100 large fields": Case((head(b"X-a: %b\r\n" % (b"a" * 60_000) * 95),), (431,)),
        "a slow header": Case((HEAD, *[b"X-a: b\r\n"] * 20), (408,), 0.1),
        "a header byte by byte": Case((HEAD, *[b"a"] * 20), (408,), 0.1),
        "half a header": Case((HEAD,), (408,)),
        "nothing": Case((b"",), (408,)),
        "latin letters in a value": Case((head(b"X-a: \xe4\xff\r\n"),), FINE),
        **{name: Case((head(field),), (400, *FINE)) for name, field in bad.items()},
    }


def lines() -> dict[str, Case]:
    """Request lines, and what is no HTTP."""
    hello = bytes.fromhex("16030100f8010000f40303") + JUNK[:200]
    starts = {
        "an unknown method": (b"BREW / HTTP/1.1\r\n", (400,)),
        "a method in small letters": (b"get / HTTP/1.1\r\n", (400,)),
        "a method of 60,000 letters": (b"A" * 60_000 + b" / HTTP/1.1\r\n", (400,)),
        "a NUL in the method": (b"G\0T / HTTP/1.1\r\n", (400,)),
        "a NUL in the address": (b"GET /\0 HTTP/1.1\r\n", (400, 404)),
        "an escaped NUL": (b"GET /%00 HTTP/1.1\r\n", (404,)),
        "a broken escape": (b"GET /%zz%f HTTP/1.1\r\n", (404,)),
        "bytes that are no UTF-8": (b"GET /%ff%fe HTTP/1.1\r\n", (404,)),
        "a path that climbs": (b"GET /../../etc/passwd HTTP/1.1\r\n", (404,)),
        "an escaped path that climbs": (b"GET /%2e%2e%2fetc%2fpasswd HTTP/1.1\r\n", (404,)),
        "a path of 60,000 letters": (b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\n", (404,)),
        "a path of 100,000 letters": (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n", (431,)),
        "a query of 60,000 letters": (
            b"GET /v1/models?" + b"a" * 60_000 + b" HTTP/1.1\r\n", FINE,
        ),
        "an absolute address": (b"GET http://127.0.0.1/v1/models HTTP/1.1\r\n", FINE),
        "an address elsewhere": (b"GET http://evil.example/nothing HTTP/1.1\r\n", (404,)),
        "a tunnel": (b"CONNECT evil.example:443 HTTP/1.1\r\n", (400, 404, 405)),
        "options of all": (b"OPTIONS * HTTP/1.1\r\n", (404, 405)),
        "trace": (b"TRACE /v1/models HTTP/1.1\r\n", (404, 405)),
        "HTTP/0.9": (b"GET /\r\n", (505,)),
        "HTTP/2.0": (b"GET / HTTP/2.0\r\n", (505,)),
        "HTTP/9.9": (b"GET / HTTP/9.9\r\n", (400,)),
        "HTTP/1.1.1": (b"GET / HTTP/1.1.1\r\n", (400,)),
    }  # fmt: skip
    return {
        **{
            name: Case((start + HOST + b"$AUTH\r\n",), statuses)
            for name, (start, statuses) in starts.items()
        },
        "HTTP/1.0": Case((b"GET /v1/models HTTP/1.0\r\n" + HOST + b"$AUTH\r\n",), FINE),
        "the start of HTTP/2": Case((b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",), (400,)),
        "a TLS hello": Case((hello,), (400,)),
        "all bytes": Case((JUNK,), (400,)),
        "endless empty lines": Case((Times(b"\r\n" * 4000, 100),), (400, 408, 431)),
        "an endless address": Case((b"GET /", Times(b"a" * 8000, 400)), (431,)),
    }


def names() -> dict[str, Case]:
    """Names that lead here, and pages of other sites."""
    hosts = (
        b"evil.example", b"evil.example:80", b"127.0.0.1.evil.example", b"localhost.evil.example",
        b"127.0.0.1@evil.example", b"evil.example#127.0.0.1", b"2130706433", b"0.0.0.0", b"",
        b"[::]", b"[::1", b"localhost:80:80", b"10.0.0.1", b"127.0.0.1, evil.example",
    )  # fmt: skip
    origins = (b"http://evil.example", b"null", b"https://127.0.0.1", b"http://127.0.0.1:1")
    fields = {f"host {host.decode()!r}": b"Host: " + host + b"\r\n" for host in hosts}
    fields["no host"] = b""
    fields["two hosts"] = HOST + b"Host: evil.example\r\n"
    return {
        **{name: Case((head(field, GET + b"$AUTH"),), (403,)) for name, field in fields.items()},
        **{
            f"origin {origin.decode()}": Case((head(b"Origin: " + origin + b"\r\n"),), (403,))
            for origin in origins
        },
        "host [::1]:80": Case((head(b"Host: [::1]:80\r\n", GET + b"$AUTH"),), FINE),
        "host LOCALHOST": Case((head(b"Host: LOCALHOST\r\n", GET + b"$AUTH"),), FINE),
    }


def keys() -> dict[str, Case]:
    """Wrong keys."""
    values = (
        b"", b"Bearer", b"Bearer ", b"Bearer wrong", b"Basic $KEY", b"$KEY", b"Bearer $KEYx",
        b"Bearer \xff\xfe", b"Bearer " + b"a" * 60_000, b"Bearer None", b"Digest $KEY",
    )  # fmt: skip
    plain = GET + HOST
    results = {
        f"key {value[:20].decode('latin-1')!r}": head(b"Authorization: " + value + b"\r\n", plain)
        for value in values
    }
    results["no key"] = head(b"", plain)
    results["a wrong key before the right one"] = head(
        b"Authorization: Bearer wrong\r\n$AUTH", plain
    )
    results["no key for metrics"] = head(b"", b"GET /metrics HTTP/1.1\r\n" + HOST)
    results["no key for an address that there is not"] = head(b"", b"GET /x HTTP/1.1\r\n" + HOST)
    return {name: Case((sent,), (401,), fronts=KEYS) for name, sent in results.items()}


def lengths() -> dict[str, Case]:
    """Lengths and chunks."""
    bad = {
        "a negative length": b"Content-Length: -1\r\n",
        "a length with a sign": b"Content-Length: +5\r\n",
        "a length in hex": b"Content-Length: 0x5\r\n",
        "a length of 30 digits": b"Content-Length: " + b"9" * 30 + b"\r\n",
        "a length of 5,000 digits": b"Content-Length: " + b"9" * 5000 + b"\r\n",
        "two lengths": b"Content-Length: 5\r\nContent-Length: 6\r\n",
        "a length and chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "chunks and a length": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "another encoding": b"Transfer-Encoding: gzip\r\n",
        "an encoding after chunks": b"Transfer-Encoding: chunked, gzip\r\n",
        "an encoding like chunks": b"Transfer-Encoding: xchunked\r\n",
        "an encoding with a tab": b"Transfer-Encoding:\x0bchunked\r\n",
    }
    chunks = {
        "a negative chunk": b"-1\r\nabc\r\n",
        "a chunk of 2**64": b"10000000000000000\r\nabc\r\n",
        "a chunk without a size": b"\r\nabc\r\n",
        "a chunk that is longer than its size": b"1\r\nabc\r\n0\r\n\r\n",
        "a chunk's size with a space": b"1 \r\na\r\n0\r\n\r\n",
        "bytes after the last chunk": b"0\r\n\r\n" + JUNK,
    }
    return {
        **{name: Case((POST + field + b"\r\nhello",), (400,)) for name, field in bad.items()},
        **{name: Case((CHUNKED + chunk,), (400,)) for name, chunk in chunks.items()},
        "a length of 2**62": Case((POST + b"Content-Length: %d\r\n\r\n" % 2**62,), (413,)),
        "a huge chunk": Case((CHUNKED + b"7fffffffffff\r\n", Times(b"a" * 9000, 400)), (413,)),
        "chunks of one byte": Case(
            (CHUNKED, Times(b"1\r\n{\r\n" * 1000, 10), b"0\r\n\r\n"), BAD_JSON
        ),
        "chunks without end": Case((CHUNKED, Times(b"1000\r\n" + b"a" * 4096 + b"\r\n", 600)),
                                   (413,)),
        "an endless size of a chunk": Case((CHUNKED + b"1;", Times(b"a" * 8000, 400)), (431,)),
        "a trailer without end": Case((CHUNKED + b"0\r\nX-a: ", Times(b"a" * 8000, 400)), (431,)),
        "trailers without end": Case((CHUNKED + b"0\r\n", Times(b"X-a: b\r\n" * 1000, 400)),
                                     (431,)),
    }  # fmt: skip


def bodies() -> dict[str, Case]:
    """Bodies that are slow, held, large or no requests."""
    model = b'{"model": "generator", "messages": [{"role": "user", "content": "x"}], '
    texts = {
        "a deep list": b"[" * 16_000,
        "a deep object": b'{"a":' * 16_000,
        "a number of 500,000 digits": b"9" * 500_000,
        "a number without bound": model + b'"seed": 1e999999}',
        "no number": b"NaN",
        "no UTF-8": b"\xff" * 1000,
        "UTF-16": "{}".encode("utf-16"),
        "half a surrogate pair": model + b'"stop": "\\ud800", "seed": "x"}',
        "a NUL": b'{"model": "\0"}',
        "an empty body": b"",
        "a picture": b"\x89PNG\r\n" + JUNK * 100,
        "a million of stops": model + b'"stop": [' + b'"a",' * 200_000 + b'"a"]}',
        "60,000 fields": b"{" + b"".join(b'"%d": 1,' % n for n in range(60_000)) + b'"model": 1}',
    }  # fmt: skip
    return {
        **{name: Case((body(text),), BAD_JSON) for name, text in texts.items()},
        "60,000 messages": Case(
            (body(b'{"messages": [' + b'{"role": "x"},' * 60_000 + b"1]}"),), (413,)
        ),
        "60,000 lists that do not end": Case((body(b'{"\\"' + b"[" * 60_000),), BAD_JSON),
        "60,000 lists": Case((body(b"[" * 60_000),), (413,)),
        "a text of 60,000 braces": Case(
            (body(b'{"model": "none", "user": "\\"' + b"{" * 60_000 + b'"}'),), BAD_JSON
        ),
        "a body over the limit": Case((body(b" " * (2**20 + 1)),), (413,)),
        "a slow body": Case((POST + b"Content-Length: 99\r\n\r\n", *[b"a"] * 15), (408,), 0.1),
        "a held body": Case((POST + b"Content-Length: 99\r\n\r\n{",), (408,)),
        "a body that waits for leave": Case(
            (POST + b"Expect: 100-continue\r\nContent-Length: 99\r\n\r\n",), (100,)
        ),
        "another expectation": Case(
            (POST + b"Expect: a miracle\r\nContent-Length: 2\r\n\r\n{}",), (400, 404)
        ),
        "bodies without end after a refusal": Case(
            (b"POST /x HTTP/1.1\r\n" + HOST + b"$AUTH" + b"Transfer-Encoding: chunked\r\n\r\n",
             Times(b"1000\r\n" + b"a" * 4096 + b"\r\n", 2000)), (404, 405),
        ),
        "a body without end for a request that has none": Case(
            (HEAD + b"Transfer-Encoding: chunked\r\n\r\n",
             Times(b"1000\r\n" + b"a" * 4096 + b"\r\n", 2000)), FINE,
        ),
    }  # fmt: skip


def manners() -> dict[str, Case]:
    """Connections."""
    ask = head(b"")
    chat = b'{"model": "generator", "stream": true, "messages": [{"role": "user", "content": "x"}]}'
    socket = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    http2 = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    return {
        "a websocket": Case((head(socket + key), b"\x81\x85\x37\xfa\x21\x3d"), FINE),
        "an upgrade to HTTP/2": Case((head(http2), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), FINE),
        "an upgrade without a connection": Case((head(b"Upgrade: websocket\r\n"),), FINE),
        "bytes after the last request": Case((head(b"Connection: close\r\n"), JUNK), FINE),
        "200 half-open connections": Case((HEAD,), (408,), ends="ignores", connections=200),
        "200 connections that are reset": Case((HEAD,), (0,), ends="resets", connections=200),
        "a client that shuts its side": Case((ask,), (0, *FINE), ends="shuts"),
        "half a request and the end": Case((POST + b"Content-Length: 99\r\n\r\n{",), (0, 404),
                                           ends="shuts"),
        "20,000 requests at once": Case((ask * 20_000,), (0, 429, *FINE)),
        "requests whose answers are not read": Case((Times(ask, 20_000),), (0,), ends="ignores"),
        "an answer that is not read": Case((head(b""), b""), (0,), ends="ignores"),
        "bodies that are left": Case((body(chat)[:-20],), (0,), ends="resets", connections=50),
        "streams that are cancelled": Case((body(chat),), (0,), ends="resets", connections=50),
        "chats whose answers are not read": Case((Times(body(chat), 3000),), (0,), ends="ignores"),
    }  # fmt: skip
