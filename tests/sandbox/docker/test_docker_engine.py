import errno
import socket
import sys
import threading

import pytest

from flowzoo.errors import MissingExtraError
from flowzoo.extras import is_installed
from flowzoo.sandbox.docker.engine import DockerError, connect, explain, explain_errors, unfit

GOOD = {
    "OSType": "linux",
    "MemoryLimit": True,
    "PidsLimit": True,
    "CpuCfsQuota": True,
    "SecurityOptions": ["name=seccomp,profile=default"],
}
needs_module = pytest.mark.skipif(
    not is_installed("docker"), reason="the module docker is not installed"
)


def test_an_engine_that_can_confine_is_fit():
    assert unfit(GOOD) == ""


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"MemoryLimit": False}, "cannot limit memory"),
        ({"PidsLimit": False, "CpuCfsQuota": False}, "cannot limit processes, limit CPU"),
        ({"SecurityOptions": ["name=cgroupns"]}, "no seccomp"),
        ({"SecurityOptions": None}, "no seccomp"),
        ({"OSType": "windows"}, "Linux containers"),
    ],
)
def test_an_engine_without_limits_is_refused(facts, message):
    assert message in unfit({**GOOD, **facts})


@needs_module
def test_no_engine(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/absent.sock")
    with pytest.raises(DockerError, match=r"no Docker engine answers at .*DOCKER_HOST"):
        connect()


@needs_module
def test_an_engine_that_hangs_up(monkeypatch, tmp_path):
    path = f"{tmp_path}/engine.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def hang_up() -> None:
            for _ in range(8):
                try:
                    server.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=hang_up)
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        try:
            with pytest.raises(DockerError, match=r"disappeared|no Docker engine"):
                connect()
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@needs_module
@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("garbage", "expected unix://PATH or tcp://HOST:PORT"),
        ("unix://", "expected unix://PATH or tcp://HOST:PORT"),
        ("ssh://me@there", "forward the engine's socket"),
    ],
)
def test_an_address_of_another_form(monkeypatch, host, message):
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(DockerError, match=f"DOCKER_HOST='{host}': .*{message}"):
        connect()


@needs_module
def test_the_words_of_the_engine_are_not_lost_behind_a_long_url():
    from docker.errors import APIError

    refused = APIError("500 Server Error for http+docker://" + "x" * 500)
    refused.explanation = "write /python/x.pyc: no space left on device"
    assert "docker image prune" in explain(refused, "building")
    assert "xxx" not in explain(refused, "building")


def test_missing_module(monkeypatch):
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(MissingExtraError, match=r"flowzoo\[docker\]"):
        connect()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), "group `docker`"),
        (PermissionError(errno.EACCES, "Permission denied", "/a.so"), "/a.so cannot be used"),
        (FileNotFoundError(errno.ENOENT, "No such file", "/tmp/a.tar"), "/tmp/a.tar cannot be"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "no Docker engine answers"),
        (TimeoutError("Read timed out."), "no Docker engine answers"),
        (OSError(errno.ENOSPC, "No space left on device"), "docker image prune"),
        (RuntimeError("write /x: no space left on device"), "docker image prune"),
        (RuntimeError("Unknown runtime specified runsc: unknown runtime"), "install it or leave"),
        (ConnectionResetError(errno.ECONNRESET, "reset"), "disappeared while testing"),
        (RuntimeError("invalid reference format: repository"), "expected NAME or NAME:TAG"),
        (RuntimeError("something else"), "failed while testing: "),
    ],
)
def test_errors_name_the_remedy(error, message):
    assert message in explain(error, "testing")
    # requests and urllib3 hand the cause over as an argument of their own errors.
    assert message in explain(RuntimeError("wrapped", RuntimeError(str(error), error)), "testing")


def test_explained_leaves_our_own_errors_alone():
    with pytest.raises(DockerError, match=r"^as it is$"), explain_errors("testing"):
        raise DockerError("as it is")
    with pytest.raises(DockerError, match="failed while testing: odd"), explain_errors("testing"):
        raise ValueError("odd")
