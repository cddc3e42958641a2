"""Named functions of programs: each run has a process of its own."""

import asyncio
import contextlib
import gc
import logging
import secrets
import sys
import time
from pathlib import Path

import pytest
from agent_programs import play_together
from processes import commands_with, wait_for

from flowzoo.envs import Episode
from flowzoo.envs.door import fork_server
from flowzoo.envs.door.launch import arguments
from flowzoo.envs.door.run import ProgramRun
from flowzoo.envs.external.program import OpenAIProgram

CLIENT = """
import asyncio, atexit, functools, http.client, json, os, subprocess, sys, threading, time
from urllib.parse import urlsplit
ROLES = {"writer": 1}
BEFORE = []
KEY = os.environ["OPENAI_API_KEY"]  # as `client = OpenAI()` at the top of a module does


def ask(text, key=None):
    address = urlsplit(os.environ["OPENAI_BASE_URL"])
    connection = http.client.HTTPConnection(address.netloc)
    body = json.dumps({"model": "writer", "messages": [{"role": "user", "content": text}]})
    connection.request("POST", address.path + "/chat/completions", body,
                       {"Authorization": "Bearer " + (key or KEY)})
    return json.load(connection.getresponse())["choices"][0]["message"]["content"]


class Leaked:
    # Is never closed, and closes itself in the loop that runs when it is collected.
    def __init__(self):
        self.loop, self.me = asyncio.get_running_loop(), self

    async def close(self):
        self.loop.call_soon(print)

    def __del__(self):
        asyncio.get_running_loop().create_task(self.close())
"""
HONEST = {
    "kept in a global": """
def solve(problem):
    BEFORE.append(problem)
    assert len(BEFORE) == 1
    return ask(problem)
""",
    "cached without its key": """
@functools.cache
def key():
    return os.environ["OPENAI_API_KEY"]
def solve(problem, base_url):
    BEFORE.append(problem)
    assert len(BEFORE) == 1
    return ask(problem, key())
""",
    "leaked in its loop": """
async def solve(problem):
    BEFORE.append(Leaked())
    assert len(BEFORE) == 1
    [Leaked() for _ in range(50)]
    return await asyncio.to_thread(ask, problem)
""",
    "leaked in nested loops": """
async def inner(problem):
    BEFORE.append(Leaked())
    assert len(BEFORE) == 1
    asyncio.get_running_loop().create_task(asyncio.sleep(600))
    return await asyncio.wait_for(asyncio.create_task(asyncio.to_thread(ask, problem)), 60)
def solve(problem):
    found = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(inner(problem))))
    thread.start(); thread.join()
    return found[0]
""",
    "left running": """
def solve(problem):
    BEFORE.append(problem)
    assert len(BEFORE) == 1
    threading.Thread(target=time.sleep, args=(600,)).start()
    subprocess.Popen(["sleep", "600.TOKEN"])
    atexit.register(time.sleep, 600)
    return ask(problem)
""",
    "talkative": """
print("loaded")
def solve(problem, *rest):
    BEFORE.append(problem)
    assert len(BEFORE) == 1
    for _ in range(20_000):
        print("Event loop is closed", file=sys.stderr)
    return ask(problem)
""",
}
FAULTS = {
    "def solve(problem): os._exit(3)": "its process ended by exit status 3",
    "def solve(problem): os.kill(os.getpid(), 9)": "its process ended by signal 9",
    "def solve(problem): sys.exit('no')": "SystemExit: no (program.py, line 28)",
    "def solve(problem): raise ValueError('x' * 10**7)": "ValueError: " + "x" * 488 + "…",
    "def solve(problem): return 7": "expected a str as its result, got int",
    "def solve(problem): return '7' * 2**26": "its answer has more than 33,554,432 characters",
    "def solve(problem, a, b, c): return '7'": "TypeError: solve() missing 1 required",
    "async def solve(problem): await asyncio.sleep(0); 1 / 0": "ZeroDivisionError: division by",
}


def made(folder: Path, source: str, **settings: object) -> OpenAIProgram:
    file = folder / "program.py"
    file.write_text(CLIENT + source, encoding="utf-8")
    return OpenAIProgram(f"{file}:solve", at_once=1, **settings)


def played(workflow: OpenAIProgram, count: int = 4) -> list[Episode]:
    return play_together(*[workflow] * count)


@pytest.mark.parametrize("source", HONEST.values(), ids=HONEST.keys())
def test_a_run_does_not_see_what_others_kept_or_left(source, tmp_path, caplog, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    token = str(secrets.randbits(32))
    with caplog.at_level(logging.WARNING, "flowzoo"):
        ended = [of.finished() for of in played(made(tmp_path, source.replace("TOKEN", token)))]
    assert [record.facts["ended"] for record in ended] == ["answer"] * 4, ended[0].facts
    assert [record.answer for record in ended] == ["1"] * 4
    assert len(caplog.records) <= 6
    assert ("Event loop" in caplog.text) == (source is HONEST["talkative"])
    wait_for(lambda: not commands_with(f"600.{token}"))


@pytest.mark.parametrize(("source", "reason"), FAULTS.items())
def test_a_faulty_run_ends_alone_with_its_reason(source, reason, tmp_path):
    faulty, honest = made(tmp_path, source), tmp_path / "honest"
    honest.mkdir()
    first, second = play_together(faulty, made(honest, HONEST["kept in a global"]))
    assert first.finished().facts["reason"].startswith(reason), first.finished().facts
    assert second.finished().facts["ended"] == "answer"


def test_a_long_answer_comes_whole(tmp_path):
    workflow = made(tmp_path, "def solve(problem): return '\\u00e9' * 2**22", seconds=60)
    (episode,) = played(workflow, 1)
    assert episode.finished().answer == "\u00e9" * 2**22


def test_a_run_that_does_not_end_is_killed(tmp_path):
    token, start = secrets.token_hex(8), time.monotonic()
    source = f"def solve(problem): subprocess.run([sys.executable, '-c', LOOP, {token!r}])\n"
    workflow = made(tmp_path, f"LOOP = 'while True: pass'\n{source}", seconds=1.0)
    (episode,) = played(workflow, 1)
    assert episode.finished().facts["ended"] == "timeout"
    wait_for(lambda: not commands_with(token))
    assert time.monotonic() - start < 60


def test_a_file_that_changes_changes_no_run(tmp_path):
    workflow = made(tmp_path, HONEST["kept in a global"])
    assert played(workflow, 1)[0].finished().facts["ended"] == "answer"
    (tmp_path / "program.py").write_text("def solve(problem): return 'changed'")
    assert played(workflow, 1)[0].finished().answer != "changed"


class Unclosed:
    """A client that closes itself in the loop that collects it, as OpenAI's do."""

    def __init__(self) -> None:
        self.loop, self.me = asyncio.get_running_loop(), self

    async def close(self) -> None:
        self.loop.call_soon(print)

    def __del__(self) -> None:
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().create_task(self.close())


async def unclosed(problem: str, base_url: str, key: str) -> str:
    """Collects what the run before it left."""
    gc.collect()
    await asyncio.sleep(0.01)
    Unclosed()
    return "1"


def test_clients_that_function_objects_leave_open_are_said_once(caplog):
    workflow = OpenAIProgram(unclosed, roles="writer", at_once=1)
    for _ in range(4):
        assert played(workflow, 1)[0].finished().facts["ended"] == "answer"
    assert "leaves clients open" in caplog.text
    assert len(caplog.records) == 1, caplog.text


def test_the_next_run_starts_the_server_again(tmp_path):
    source = (
        "def solve(problem):\n    if ask(problem): os.kill(os.getppid(), 9)\n    time.sleep(9)\n"
    )
    for _ in range(2):
        (episode,) = played(made(tmp_path, source), 1)
        assert episode.finished().facts["reason"].startswith("its process ended by signal 9")
    assert sys.platform == "linux"


def test_the_first_run_need_not_send_a_request_before_others_start(tmp_path):
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    source = f"""
from pathlib import Path
def solve(problem):
    Path({str(meeting)!r}, str(os.getpid())).touch()
    while len(os.listdir({str(meeting)!r})) < 2:
        time.sleep(0.01)
    return ask(problem)
"""
    ended = [of.finished() for of in played(made(tmp_path, source, seconds=60.0), 2)]
    assert [record.facts["ended"] for record in ended] == ["answer"] * 2, ended[0].facts


def test_a_program_in_an_installed_package_has_the_key_of_its_run(tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    name = f"installed_{secrets.token_hex(4)}"
    package = tmp_path / "site-packages" / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(CLIENT + HONEST["kept in a global"], encoding="utf-8")
    (package / "named.py").write_text(f"from {name} import ROLES, solve\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(package.parent))
    ended = [of.finished() for of in played(OpenAIProgram(f"{name}.named:solve", at_once=1), 2)]
    assert [record.facts["ended"] for record in ended] == ["answer"] * 2, ended[0].facts


def test_a_run_that_cannot_be_forked_ends_alone(monkeypatch):
    forks, told = fork_server.ForkServer.__new__(fork_server.ForkServer), []

    def fail(work):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(forks, "_fork", fail, raising=False)
    monkeypatch.setattr(forks, "_tell", lambda *end: told.append(end), raising=False)
    forks.runs, forks.is_warm, forks.warm_at = {}, True, 0.0
    forks.waiting = [{"run": 1}, {"run": 2}]
    forks._start_waiting()
    assert [number for number, *_ in told] == [1, 2]
    assert "Resource temporarily unavailable" in told[0][2]


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda problem: "", 1),
        (lambda problem, url: "", 2),
        (lambda problem, temperature=1.0: "", 1),
        (lambda problem="", base_url=None, api_key=None: "", 3),
        (lambda problem, temperature=1.0, *rest: "", 1),
        (lambda problem, *, base_url="": "", 1),
        (lambda *given: "", 3),
    ],
)
def test_arguments_that_a_function_takes(function, count):
    run = ProgramRun(OpenAIProgram(function, roles="writer").program, "1+1")
    assert arguments(function, run, "URL") == ["1+1", "URL", run.key][:count]
