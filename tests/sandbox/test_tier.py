import platform
import socket
import socketserver
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from flowzoo.errors import UsageError
from flowzoo.extras import remedy
from flowzoo.sandbox import tier

linux = pytest.mark.skipif(platform.system() != "Linux", reason="a kernel interface of Linux")


class Ping(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/_ping" else 404)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"OK")

    def log_message(self, format: str, *args: object) -> None:
        pass

    def address_string(self) -> str:
        return "unix"


class Broken(Ping):
    status = 500


@contextmanager
def serve(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "engine.sock"
    server = socketserver.ThreadingUnixStreamServer(str(path), Ping)
    with serve(server):
        yield f"unix://{path}"


@pytest.mark.parametrize(
    ("docker", "namespaces", "landlock", "seccomp", "expected"),
    [
        (True, True, 5, True, "docker"),
        (True, False, 0, False, "docker"),
        (False, True, 5, True, "namespaces"),
        (False, True, 0, True, "namespaces"),
        (False, False, 1, True, "landlock"),
        (False, True, 5, False, "none"),
        (False, False, 5, False, "none"),
        (False, False, 0, True, "none"),
    ],
)
def test_the_best_working_tier_is_chosen(
    monkeypatch, docker, namespaces, landlock, seccomp, expected
):
    monkeypatch.setattr(tier.platform, "system", lambda: "Linux")
    monkeypatch.setattr(tier, "probe_docker", lambda: tier.TierCheck(docker, ""))
    monkeypatch.setattr(tier, "probe_namespaces", lambda: tier.TierCheck(namespaces, ""))
    monkeypatch.setattr(tier, "landlock_abi", lambda: landlock)
    monkeypatch.setattr(tier, "has_seccomp", lambda: seccomp)
    assert tier.probe().name == expected


def test_an_unknown_backend_is_refused_with_near_matches():
    with pytest.raises(UsageError, match="Did you mean 'namespaces'"):
        tier.check_sandbox("namespace")
    assert tier.backend_names()[0] == "auto"


def test_an_engine_on_a_unix_socket_answers(engine):
    assert tier.ping_engine(engine, timeout=60).ok


def test_an_engine_on_a_tcp_socket_answers():
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Ping)
    with serve(server):
        assert tier.ping_engine(f"tcp://127.0.0.1:{server.server_address[1]}", timeout=60).ok


def test_an_engine_that_answers_an_error_is_not_ok(tmp_path):
    server = socketserver.ThreadingUnixStreamServer(str(tmp_path / "s"), Broken)
    with serve(server):
        check = tier.ping_engine(f"unix://{tmp_path / 's'}", timeout=60)
        assert not check.ok
        assert "500" in check.detail


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("unix:///nowhere/engine.sock", "No such file"),
        ("tcp://127.0.0.1:1", "refused"),
        ("tcp://127.0.0.1:not-a-port", "not-a-port"),
        ("ssh://somewhere", remedy("docker")),
        ("", remedy("docker")),
    ],
)
def test_an_absent_engine_is_a_reason_and_no_exception(host, reason):
    check = tier.ping_engine(host)
    assert not check.ok
    assert reason in check.detail


def test_a_silent_engine_is_given_up_on(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        assert not tier.ping_engine(f"unix://{tmp_path / 's'}", timeout=0.1).ok


def test_an_engine_without_the_python_client_is_not_enough(engine, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", engine)
    monkeypatch.setitem(sys.modules, "docker", None)
    ping = tier.ping_engine
    monkeypatch.setattr(tier, "ping_engine", lambda host: ping(host, timeout=60))
    check = tier.probe_docker()
    assert not check.ok
    assert remedy("docker") in check.detail


@linux
def test_probe_agrees_with_its_parts_and_leaves_this_process_where_it_was():
    namespaces = [(path.name, path.readlink()) for path in Path("/proc/self/ns").iterdir()]
    best = tier.probe()
    assert [(path.name, path.readlink()) for path in Path("/proc/self/ns").iterdir()] == namespaces
    assert best.name == next((name for name, check in best.checks.items() if check.ok), "none")
    assert best.trust.startswith(f"{best.name}: ")
    assert "\n" not in best.trust
    assert best.checks["namespaces"].detail


@linux
def test_a_refused_namespace_is_a_reason(monkeypatch):
    monkeypatch.setattr(tier, "_NAMESPACE_TEST", "print('unshare: refused'); raise SystemExit(1)")
    assert tier.probe_namespaces() == tier.TierCheck(False, "unshare: refused")


@linux
def test_landlock_and_seccomp_agree_with_what_the_kernel_says():
    modules = Path("/sys/kernel/security/lsm")
    if modules.exists():
        assert (tier.landlock_abi() > 0) == ("landlock" in modules.read_text().split(","))
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    assert tier.has_seccomp() == actions.exists()


def test_off_linux_only_docker_counts(monkeypatch):
    monkeypatch.setattr(tier.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(tier, "probe_docker", lambda: tier.TierCheck(False, "no engine"))
    best = tier.probe()
    assert best.name == "none"
    assert "Darwin" in best.checks["namespaces"].detail
    monkeypatch.setattr(tier, "probe_docker", lambda: tier.TierCheck(True, "engine 27"))
    assert tier.probe().name == "docker"
