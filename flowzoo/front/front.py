"""The application of every server: checks of requests, addresses, errors, health and metrics."""

import functools
import logging
import re
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_address
from typing import Any

from flowzoo.front.refusal import BodyRoom, ClientGoneError, RefusalError
from flowzoo.front.request import MOST_INCOMING, HttpReply, HttpRequest, Receive, Send, json_reply
from flowzoo.provenance import redact


class Tally:
    """Numbers and times of requests, without anything that a client sent."""

    def __init__(self) -> None:
        self.statuses, self.drops, self.seconds = Counter[int](), Counter[str](), 0.0

    def add(self, status: int, seconds: float = 0.0) -> None:
        """Count a request."""
        self.statuses[status] += 1
        self.seconds += seconds

    def text(self, gauges: Mapping[str, float]) -> str:
        """All counts, and the current values of `gauges`."""
        lines = ["# TYPE flowzoo_http_requests_total counter"]
        for status, count in sorted(self.statuses.items()):
            lines.append(f'flowzoo_http_requests_total{{status="{status}"}} {count}')
        lines.append("# TYPE flowzoo_http_dropped_connections_total counter")
        for reason, count in sorted(self.drops.items()):
            lines.append(f'flowzoo_http_dropped_connections_total{{reason="{reason}"}} {count}')
        lines.append("# TYPE flowzoo_http_request_seconds summary")
        lines.append(f"flowzoo_http_request_seconds_sum {self.seconds:.6f}")
        lines.append(f"flowzoo_http_request_seconds_count {self.statuses.total()}")
        for name, value in gauges.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE flowzoo_{name} {kind}", f"flowzoo_{name} {value:g}"]
        return "\n".join(lines) + "\n"


Handler = Callable[[HttpRequest], Awaitable[HttpReply]]
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:@/?#\s]+))(?::\d*)?", re.IGNORECASE)
_log = logging.getLogger("flowzoo")


class Front:
    """An ASGI application; a server overrides the checks and counts."""

    most_connections = 4096
    is_public = False
    """True if its clients come from anywhere and prove themselves by a key. Otherwise they are on
    this machine, and names and pages of other sites that lead here are refused."""

    def __init__(self, routes: Mapping[str, Handler]) -> None:
        """Take the handlers by method and path, of which the last part may be `*`."""
        common = {"GET /health": self._health, "GET /metrics": self._metrics}
        self.routes: dict[str, Handler] = {**routes, **common}
        self.tally, self.ending, self.connections = Tally(), False, set[Any]()
        self._room = BodyRoom(MOST_INCOMING)

    # -- what a server decides -------------------------------------------------------------------

    def check(self, request: HttpRequest) -> None:
        """Raise `RefusalError` for a request without the key."""

    def note_refused(self, request: HttpRequest, error: RefusalError) -> None:
        """Note that a request was refused."""

    def gauges(self) -> dict[str, float]:
        """Values for `/metrics` by name; counters end in `_total`."""
        return {}

    # -- requests --------------------------------------------------------------------------------

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request."""
        start, status = time.perf_counter(), 499  # the client has left
        request = HttpRequest(scope, receive, self._room)
        try:
            reply = await self._answer(request)
            await reply.send(send)
            status = reply.status
        except ClientGoneError:
            pass
        finally:
            request.end()
            self.tally.add(status, time.perf_counter() - start)

    async def _answer(self, request: HttpRequest) -> HttpReply:
        try:
            if not self.is_public:
                check_local(request)
            if request.path != "/health":
                self.check(request)
            return await self._handler(request)(request)
        except RefusalError as error:
            self.note_refused(request, error)
            refusal = error
        except ClientGoneError:
            raise
        except Exception as error:
            refusal = failure(error)
        return json_reply(refusal.status, refusal.body(), refusal.headers)

    def _handler(self, request: HttpRequest) -> Handler:
        method, path = request.method, request.path
        names = path, f"{path.rpartition('/')[0]}/*", "/*"
        for name in names:
            if handler := self.routes.get(f"{method} {name}"):
                return handler
        pairs = [route.split(" ") for route in self.routes]
        message = f"There is no {method} {path:.200}: there are {', '.join(self.routes)}."
        if allowed := [other for other, name in pairs if name in names]:
            headers = {"Allow": ", ".join(allowed)}
            raise RefusalError(405, "method_not_allowed", message, headers=headers)
        raise RefusalError(404, "unknown_url", message)

    async def _health(self, request: HttpRequest) -> HttpReply:
        status = "ending" if self.ending else "ok"
        return json_reply(503 if self.ending else 200, {"status": status})

    async def _metrics(self, request: HttpRequest) -> HttpReply:
        gauges = {"http_connections": len(self.connections), **self.gauges()}
        return HttpReply(200, self.tally.text(gauges).encode(), "text/plain; version=0.0.4")


@functools.lru_cache(64)
def is_local(host: str) -> bool:
    """True if the header `Host` names this machine."""
    match = _HOST.fullmatch(host)
    name = (match[1] or match[2]).lower() if match else ""
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


def check_local(request: HttpRequest) -> None:
    """Raise `RefusalError` for a request by another name than this machine's, or of another page.

    A name of another site may lead to this machine, and its pages would read what is here.
    """
    hosts = request.values(b"host")
    if len(hosts) != 1 or not is_local(hosts[0]):
        message = "The header `Host` must name this machine: 127.0.0.1, localhost or [::1]."
        raise RefusalError(403, "host_refused", message)
    origin = request.header(b"origin")
    if origin and origin.lower() != f"http://{hosts[0]}".lower():
        message = "Pages of other sites may only ask a server that has an API key."
        raise RefusalError(403, "origin_refused", message)


def failure(error: BaseException) -> RefusalError:
    """The error for a request that failed by a fault; the log has more, without secrets."""
    _log.error("a request failed: %s", redact("".join(traceback.format_exception(error))))
    return RefusalError(500, "server_error", f"The request failed by {type(error).__name__}.")
