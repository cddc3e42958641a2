"""Conformance check of sandbox backends, for packages that provide one.

    from flowzoo.sandbox.testing import check_backend

    def test_my_backend():
        check_backend("mine")

The name is a row of `flowzoo.sandbox.tier.BACKENDS`, or an entry point of `flowzoo.sandboxes`.
"""

import asyncio
import json

from flowzoo.errors import UsageError
from flowzoo.sandbox.attacks.suite import run_suite
from flowzoo.sandbox.backends import BoxConnection
from flowzoo.sandbox.box.engine import SandboxError
from flowzoo.sandbox.program import CallTest, CheckTest, Limits, Program, Status, StdinTest, Test
from flowzoo.sandbox.sandbox import Sandbox, make_backend
from flowzoo.sandbox.tier import BackendSpec, TierCheck, backend_spec

# Program, test and expected verdict.
CASES: tuple[tuple[Program, Test, Status], ...] = (
    (Program("print(int(input()) + 1)"), StdinTest("41\n", "42\n"), "AC"),
    (Program("print(int(input()) + 2)"), StdinTest("41\n", "42\n"), "WA"),
    (Program("1 / 0"), StdinTest("41\n", "42\n"), "RE"),
    (Program("print("), StdinTest("41\n", "42\n"), "CE"),
    (Program("while True: pass"), StdinTest("41\n", "42\n"), "TLE"),
    (Program("x = bytearray(10 * 2**30)"), StdinTest("41\n", "42\n"), "MLE"),
    (Program("while True: print('42' * 1000)"), StdinTest("41\n", "42\n"), "OLE"),
    (Program("def f(n):\n    return n + 1", "f"), CallTest((41,), 42), "AC"),
    (Program("def f(n):\n    return n + 2", "f"), CallTest((41,), 42), "WA"),
    (Program("def f(n):\n    return n + 1", "f"), CheckTest("assert f(41) == 42"), "AC"),
    (Program("def f(n):\n    return n + 2", "f"), CheckTest("assert f(41) == 42"), "WA"),
)
LIMITS = Limits(cpu_s=2.0, wall_s=20.0, memory_mb=256)


def check_backend(name: str, *, attacks: bool = True) -> None:
    """Check a sandbox backend: facts, boxes, verdicts, recovery and promises.

    Args:
        name: name of the backend, which must work on this machine.
        attacks: True to run the self-check too (half a minute).

    Raises:
        AssertionError: the backend violates its contract; the message names the part.
        FlowzooError: the backend does not work here.
    """
    spec = backend_spec(name)
    _check_spec(spec)
    asyncio.run(_check_connection(name))
    with Sandbox(name, workers=1) as sandbox:
        _check_facts(sandbox, spec)
        _check_verdicts(sandbox)
        _check_limits(sandbox)
        if attacks:
            broken = [
                f"{result.name}: {result.note or result.got}"
                for result in run_suite(sandbox)
                if result.promised and not result.ok
            ]
            assert not broken, f"broken promises; fix them or name limitations: {broken}"
    _check_closed(sandbox)


def _check_spec(spec: BackendSpec) -> None:
    check = spec.check()
    assert isinstance(check, TierCheck), f"check() must return a TierCheck, got {check!r}"
    assert check.ok, f"the backend does not work here: {check.detail}"
    assert spec.trust.startswith(f"{spec.name}: "), f"trust must begin with '{spec.name}: '"
    assert "\n" not in spec.trust, "trust must be one line"


async def _check_connection(name: str) -> None:
    # A connection may be used after its box is killed.
    backend = make_backend(name, {})
    try:
        connection = await backend.start()
        data = await connection.read()
        assert data, f"a fresh box sent nothing: {connection.exit_summary()}"
        await connection.kill()
        await connection.kill()  # a second call is a no-op
        assert await _read_to_end(connection), "read() must return b'' after kill()"
        summary = connection.exit_summary()
        assert summary, "exit_summary() must describe the end of the box"
        assert "\n" not in summary, "exit_summary() must be one line"
        try:
            await connection.write(b"x")
        except OSError:
            return
        raise AssertionError("write() must raise OSError after kill()")
    finally:
        backend.close()


async def _read_to_end(connection: BoxConnection) -> bool:
    for _ in range(100):
        if not await connection.read():
            return True
    return False


def _check_facts(sandbox: Sandbox, spec: BackendSpec) -> None:
    assert sandbox.tier == spec.name, f"tier must be {spec.name!r}, got {sandbox.tier!r}"
    assert sandbox.trust == spec.trust, f"trust must be that of the spec, got {sandbox.trust!r}"
    json.dumps(sandbox.describe())


def _check_verdicts(sandbox: Sandbox) -> None:
    programs, tests, expected = zip(*CASES, strict=True)
    for _ in range(2):  # the second time in warm boxes
        verdicts = sandbox.run_sync(programs, [[test] for test in tests], LIMITS)
        for program, status, verdict in zip(programs, expected, verdicts, strict=True):
            assert verdict.status == status, f"{program.source!r}: expected {status}, got {verdict}"
            assert verdict.tier == sandbox.tier


def _check_limits(sandbox: Sandbox) -> None:
    # Limits that cannot be enforced are rejected before a program runs.
    program, test, _ = CASES[0]
    try:
        sandbox.run_sync([program], [[test]], Limits(memory_mb=1))
    except UsageError:
        return
    raise AssertionError("check() must raise UsageError for memory_mb=1")


def _check_closed(sandbox: Sandbox) -> None:
    try:
        sandbox.run_sync([CASES[0][0]], [[CASES[0][1]]])
    except (UsageError, SandboxError):
        return
    raise AssertionError("a closed sandbox must not run programs")
