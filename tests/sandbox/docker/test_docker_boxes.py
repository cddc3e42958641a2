"""Boxes that are containers, and the engine that runs them."""

import asyncio
import errno
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from processes import wait_for

from flowzoo.errors import FlowzooError, MissingExtraError, UsageError
from flowzoo.extras import is_installed
from flowzoo.sandbox.box import run as box_run
from flowzoo.sandbox.docker import boxes as docker_boxes
from flowzoo.sandbox.docker import image as docker_image
from flowzoo.sandbox.docker import rootfs as docker_rootfs
from flowzoo.sandbox.docker.boxes import Demultiplexer, DockerBackend
from flowzoo.sandbox.docker.container import container_config, profile
from flowzoo.sandbox.docker.engine import DockerError, connect, explain, explain_errors, unfit
from flowzoo.sandbox.program import Limits, Program, StdinTest
from flowzoo.sandbox.sandbox import Sandbox
from tests.sandbox.judging import PATIENT

HONEST = Program("print(int(input()) + 1)")
TEST = StdinTest("41\n", "42\n")
VERSION = sys.version.split()[0]  # inside as outside
SHORT = Limits(cpu_s=1.0)  # for programs that loop


@pytest.fixture(scope="module")
def client(docker: str) -> Iterator[Any]:
    client, _ = connect()
    yield client
    client.close()


def ours(client: Any, nonce: str) -> list[Any]:
    labels = {"label": f"{docker_boxes.NONCE}={nonce}"}
    return client.api.containers(all=True, filters=labels)


def judge(
    sandbox: Sandbox, *sources: str, limits: Limits | Sequence[Limits] = PATIENT
) -> list[str]:
    programs = [Program(source) for source in sources]
    verdicts = sandbox.run_sync(programs, [[TEST]] * len(programs), limits)
    return [verdict.status for verdict in verdicts]


@pytest.fixture
def first_hang(replace_first: Callable[[int, bytes], list[box_run.Box]]) -> list[box_run.Box]:
    """The first two jobs hang, whatever their program is; the boxes that have got them."""
    return replace_first(2, b"import time; time.sleep(600)")


def test_demultiplexer_takes_any_cut():
    stream = (
        b"\x01\0\0\0\0\0\0\x03abc\x02\0\0\0\0\0\0\x02no\x01\0\0\0\0\0\0\x00\x01\0\0\0\0\0\0\x01d"
    )
    for step in range(1, len(stream) + 1):
        streams = Demultiplexer()
        pieces = [stream[start : start + step] for start in range(0, len(stream), step)]
        assert b"".join(map(streams.feed, pieces)) == b"abcd"
        assert streams.stderr == b"no"


def test_container_is_locked_down():
    host = container_config("image", {"a": "b"})["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert sorted(host["CapAdd"]) == ["KILL", "SETGID", "SETUID"]
    assert host["Memory"] == host["MemorySwap"]
    assert not {"Binds", "Mounts", "Devices", "Privileged", "PortBindings"} & set(host)
    nonroot = container_config("image", {}, user="nonroot", runtime="runsc")
    assert nonroot["HostConfig"]["CapAdd"] == []
    assert nonroot["HostConfig"]["Runtime"] == "runsc"
    assert nonroot["User"] == "10001:10001"


def test_profile_allows_nothing_that_reaches_out():
    allowed = {
        name: rule
        for rule in profile()["syscalls"]
        if rule["action"] == "SCMP_ACT_ALLOW"
        for name in rule["names"]
    }
    assert profile()["defaultAction"] == "SCMP_ACT_ERRNO"
    forbidden = {
        *("socket", "connect", "bind", "ptrace", "process_vm_readv", "bpf", "keyctl", "mount"),
        *("io_uring_setup", "shmget", "msgget", "semget", "mq_open", "unshare", "setns", "clone3"),
        *("perf_event_open", "userfaultfd", "mknod", "sched_setaffinity", "open_by_handle_at"),
    }
    assert not forbidden & set(allowed)
    assert allowed["clone"]["args"]
    assert allowed["socketpair"]["args"]


def test_limits_above_the_containers_are_refused(docker):
    with Sandbox("docker", workers=1) as sandbox:
        for limits in (Limits(memory_mb=10**6), Limits(files_mb=10**5), Limits(threads=10**3)):
            with pytest.raises(UsageError, match="the docker tier allows a program at most"):
                judge(sandbox, "print(1)", limits=limits)


@pytest.mark.parametrize("user", ["root", pytest.param("nonroot", marks=pytest.mark.full)])
def test_verdicts(docker, user):
    loop, write = "while True: pass", "open('/tmp/x', 'w').write(input())"
    expected = {
        HONEST.source: "AC",
        "print(int(input()) + 2)": "WA",
        "raise ValueError": "RE",
        "print(": "CE",
        loop: "TLE",
        "x = bytearray(10**10)": "MLE",
        "import socket; socket.socket()": "RE",
        "import os; os.fork()": "RE",
        "open('/runner/x', 'w')": "RE",
        f"{write}; print(int(open('/tmp/x').read()) + 1)": "AC",
        "import os; print(42 + len(os.listdir('/tmp')))": "AC",
        "with open('/tmp/x', 'wb') as file:\n    while True: file.write(bytes(2**20))": "RE",
        f"{HONEST.source}  # again": "AC",
    }
    limits = [SHORT if source == loop else PATIENT for source in expected]
    with Sandbox("docker", workers=2, options={"user": user}) as sandbox:
        assert judge(sandbox, *expected, limits=limits) == [*expected.values()]
        python = f"import sys\nprint(42 if sys.version.split()[0] == {VERSION!r} else sys.version)"
        assert judge(sandbox, python) == ["AC"]
        assert (sandbox.tier, sandbox.describe()["user"]) == ("docker", user)


async def test_start_and_close_leave_nothing(client):
    backend = DockerBackend()
    wires = await asyncio.gather(*(backend.start() for _ in range(3)))
    assert len(ours(client, backend.nonce)) == 3
    await wires[0].kill()
    await wires[0].kill()
    assert len(ours(client, backend.nonce)) == 2
    assert await wires[0].read() == b""
    with pytest.raises(OSError, match="killed"):
        await wires[0].write(b"x")
    for wire in wires[1:]:
        wire.forget()
    await asyncio.to_thread(backend.close)
    assert ours(client, backend.nonce) == []


@pytest.mark.parametrize("runs", [False, True])
async def test_a_cancelled_start_leaves_nothing(client, monkeypatch, runs):
    backend = DockerBackend()
    begun, gate, started = threading.Event(), threading.Event(), threading.Event()
    start = backend._start

    def hold() -> Any:
        container = start() if runs else None
        begun.set()
        gate.wait(60)
        container = container or start()
        started.set()
        return container

    monkeypatch.setattr(backend, "_start", hold)
    starting = asyncio.create_task(backend.start())
    assert await asyncio.to_thread(begun.wait, 60)
    assert len(ours(client, backend.nonce)) == runs
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    gate.set()
    assert await asyncio.to_thread(started.wait, 60)
    await asyncio.to_thread(wait_for, lambda: not ours(client, backend.nonce))
    await asyncio.to_thread(backend.close)


def test_killed_containers_lose_no_program(client, first_hang):
    owner = docker_boxes.owner_labels("")[docker_boxes.OWNER]
    labels = {"label": f"{docker_boxes.OWNER}={owner}"}
    with Sandbox("docker", workers=2) as sandbox, ThreadPoolExecutor(1) as threads:
        work = threads.submit(sandbox.run_sync, [HONEST] * 6, [[TEST]] * 6, PATIENT)
        wait_for(lambda: len(first_hang) == 2)
        for row in client.api.containers(filters=labels):
            client.api.kill(row["Id"])
        verdicts = work.result(600)
    assert [verdict.status for verdict in verdicts] == ["AC"] * 6
    assert [row for row, verdict in enumerate(verdicts) if verdict.facts] == [0, 1]


ABANDONED = """
import asyncio, os, signal
from flowzoo.sandbox.docker.boxes import DockerBackend
backend = DockerBackend()
async def go():
    await backend.start()
    print(backend.nonce, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(go())
"""


@pytest.mark.full
def test_containers_end_with_their_owner(client):
    done = subprocess.run([sys.executable, "-c", ABANDONED], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    wait_for(lambda: not ours(client, done.stdout.strip()))


UNCLOSED = """
from flowzoo.sandbox.program import Limits, Program, StdinTest
from flowzoo.sandbox.sandbox import Sandbox
sandbox = Sandbox("docker", workers=2)
work = [Program("print(int(input()) + 1)")] * 4
found = sandbox.run_sync(work, [[StdinTest("1", "2")]] * 4, Limits(cpu_s=60, wall_s=300))
print([v.status for v in found])
print(sandbox._engine.opened.result().nonce)
"""


@pytest.mark.full
def test_exit_without_close_leaves_nothing(client):
    done = subprocess.run([sys.executable, "-c", UNCLOSED], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    statuses, nonce = done.stdout.splitlines()
    assert statuses == str(["AC"] * 4)
    assert ours(client, nonce) == []


@pytest.mark.full
def test_a_fork_leaves_the_owners_containers_alone(client):
    with Sandbox("docker", workers=1) as sandbox:
        judge(sandbox, HONEST.source)
        assert sandbox._engine is not None
        nonce = sandbox._engine.opened.result().nonce  # pyright: ignore
        before = {row["Id"] for row in ours(client, nonce)}
        pid = os.fork()
        if not pid:
            code = 1
            try:
                code = int(judge(sandbox, HONEST.source) != ["AC"])
                sandbox.close_sync()
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert {row["Id"] for row in ours(client, nonce)} == before
        assert judge(sandbox, HONEST.source) == ["AC"]


def test_sweep_takes_the_orphans_alone(client, monkeypatch):
    backend = DockerBackend()
    # Or another process that starts a backend just now would sweep them first.
    monkeypatch.setattr(docker_boxes, "machine_id", lambda: f"machine of {backend.nonce}")
    living = docker_boxes.owner_labels(backend.nonce)
    born = living[docker_boxes.OWNER].split()[1]
    dead = {**living, docker_boxes.OWNER: f"{os.getpid()} {int(born) - 1}"}  # the id came again
    elsewhere = {**dead, docker_boxes.MACHINE: "another machine"}
    ids = {}
    for name, labels in (("mine", living), ("dead", dead), ("elsewhere", elsewhere)):
        config = container_config(backend.image.id, labels)
        ids[name] = client.api.create_container_from_config(config)["Id"]
    try:
        assert docker_boxes.remove_orphans(client) == 1
        left = {row["Id"] for row in ours(client, backend.nonce)}
        assert left == {ids["mine"], ids["elsewhere"]}
    finally:
        backend.close()
    assert ours(client, backend.nonce) == []


def test_birth_knows_the_living_and_the_dead():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    born = docker_boxes.process_start_time(child.pid)
    assert born is not None
    assert born == docker_boxes.process_start_time(child.pid)
    child.kill()
    child.wait()
    child.communicate()
    assert docker_boxes.process_start_time(child.pid) is None


def test_an_image_that_is_not_there(docker):
    with pytest.raises(DockerError, match="the engine has no image 'flowzoo-absent:1'"):
        DockerBackend(image="flowzoo-absent:1")
    with pytest.raises(UsageError, match=r"docker.*no image"):
        _ = Sandbox("docker", options={"image": "flowzoo-absent:1"}).tier


def test_a_wrong_image_is_refused(client):
    empty = io.BytesIO()
    tarfile.open(fileobj=empty, mode="w").close()
    client.api.import_image_from_data(empty.getvalue(), "flowzoo-test-wrong", "1")
    try:
        with pytest.raises(DockerError, match="no sandbox image"):
            DockerBackend(image="flowzoo-test-wrong:1")
    finally:
        client.api.remove_image("flowzoo-test-wrong:1")


@pytest.mark.full
def test_build_from_a_base_image(client, tmp_path):
    """The base stands for a registry's Python image: `python3` on the image's own PATH."""
    path = tmp_path / "base.tar"
    with path.open("w+b") as out:
        docker_rootfs.write_rootfs(out, {})
        out.seek(0)
        with tarfile.open(fileobj=out, mode="a") as tar:
            link = tarfile.TarInfo("python/bin/python3")
            link.type, link.linkname = tarfile.SYMTYPE, Path(docker_rootfs.ENTRYPOINT[0]).name
            tar.addfile(link)
    changes = ["ENV PATH=/python/bin LD_LIBRARY_PATH=/lib"]
    client.api.import_image(str(path), "flowzoo-test-base", "1", changes=changes)
    try:
        built = docker_image.build_image(client, "flowzoo-test-base:1", "flowzoo-test-built:1")
        options = {"image": "flowzoo-test-built:1"}
        with Sandbox("docker", workers=1, options=options) as sandbox:
            assert judge(sandbox, HONEST.source) == ["AC"]
            assert sandbox.describe()["image_id"] == built.id
    finally:
        runner = docker_rootfs.read_runner()
        tag = docker_image.image_tag(runner, "flowzoo-test-base:1")
        for name in ("flowzoo-test-built:1", tag, "flowzoo-test-base:1"):
            client.api.remove_image(name, force=True)


def test_an_unknown_runtime_and_user(docker):
    with pytest.raises(UsageError, match="unknown Docker runtime 'runx'"):
        DockerBackend(runtime="runx")
    with pytest.raises(UsageError, match="unknown box user 'admin'"):
        DockerBackend(user="admin")  # pyright: ignore


def test_tag_follows_the_runner_and_the_base():
    runner = docker_rootfs.read_runner()
    changed = {**runner, "wire.py": runner["wire.py"] + b"\n"}
    tags = {
        docker_image.image_tag(runner),
        docker_image.image_tag(changed),
        docker_image.image_tag(runner, "python:3.12-slim"),
        docker_image.image_tag(runner, "python:3.13-slim"),
    }
    assert len(tags) == 4
    assert docker_image.image_tag(runner) == docker_image.image_tag(dict(runner))


def test_rootfs_holds_the_interpreter_and_nothing_of_the_machine():
    out = io.BytesIO()
    docker_rootfs.write_rootfs(out, docker_rootfs.read_runner())
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        members = {member.name: member for member in tar}
    names = set(members)
    assert docker_rootfs.ENTRYPOINT[0][1:] in names
    assert {"runner/__main__.py", "runner/wire.py", "etc/passwd"} <= names
    assert any(name.startswith("lib/libc.so") for name in names)
    folders = {"etc", "lib", "lib64", "python", "runner", "tmp", "proc", "sys", "dev"}
    assert {name.split("/")[0] for name in names} <= folders | {"usr"}
    of_usr = [name for name in names if name.startswith("usr/")]
    assert all(name.startswith("usr/share/zoneinfo/") for name in of_usr)
    assert not [name for name in names if "site-packages" in name or "/test/" in name]
    assert not [name for name in names if name.endswith(("/sh", "/bash", "/env"))]
    assert {(member.uid, member.gid) for member in members.values()} == {(0, 0)}
    assert [name for name, member in members.items() if member.mode & 0o7022] == ["tmp"]


@pytest.mark.full
def test_an_engine_that_dies_in_mid_batch(docker, tmp_path_factory, monkeypatch, first_hang):
    script = str(Path(__file__).parents[3] / ".ci" / "docker-engine")
    if os.geteuid() != 0 or shutil.which("dockerd") is None or not os.path.exists(script):
        pytest.skip("an engine of one's own needs root, dockerd and the checkout")
    folder = str(tmp_path_factory.mktemp("engine"))
    started = subprocess.run([script, "start", folder], capture_output=True, text=True, check=True)
    monkeypatch.setenv("DOCKER_HOST", started.stdout.strip())
    try:
        with Sandbox("docker", workers=2) as sandbox, ThreadPoolExecutor(1) as threads:
            work = threads.submit(
                sandbox.run_sync, [HONEST] * 6, [[TEST]] * 6, PATIENT, on_error="verdict"
            )
            wait_for(lambda: len(first_hang) == 2)
            subprocess.run([script, "stop", folder], check=True)
            assert [verdict.status for verdict in work.result(600)] == ["SE"] * 6
            with pytest.raises(FlowzooError, match="no Docker engine answers"):
                judge(sandbox, HONEST.source)
    finally:
        subprocess.run([script, "stop", folder], check=True)


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
    assert unfit(GOOD) == ""
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
