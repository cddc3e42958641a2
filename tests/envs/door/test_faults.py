"""Programs that fail, do not end, or go on after their episode."""

import asyncio
import json
import logging
import os
import secrets
import sys
import threading
import time
from contextlib import ExitStack
from typing import Any

import pytest
from agent_programs import (
    REVIEWED,
    Client,
    chat,
    play_together,
    raw_request,
    reviewed,
    start_run,
)
from openai import OpenAI
from processes import commands_with, wait_for

from flowzoo.envs import Episode
from flowzoo.envs.door import launch, server
from flowzoo.envs.door import run as door_run
from flowzoo.envs.door.run import MOST_REFUSED
from flowzoo.envs.door.server import advance_all, door, submit
from flowzoo.envs.external.program import OpenAIProgram
from flowzoo.envs.testing import advance
from flowzoo.errors import MissingExtraError
from flowzoo.front.refusal import BodyRoom

USER = [{"role": "user", "content": "x"}]


def played(solve: Any, **settings: Any) -> tuple[Episode, dict[str, Any]]:
    """A finished episode with its facts, which moved beside one of a program without a fault."""
    values = {"roles": "writer", "at_once": 1, **settings}
    faulty, sound = play_together(OpenAIProgram(solve, **values), REVIEWED)
    assert sound.finished().facts["ended"] == "answer"
    assert [turn.agent for turn in sound.turns] == ["writer_0", "reviewer_0"]
    facts = dict(faulty.finished().facts)
    assert facts["failed"] == (facts["ended"] != "answer")
    assert facts["ended"] == "answer" or faulty.finished().answer is None
    return faulty, facts


BODIES: dict[str, tuple[Any, int, str]] = {
    "no JSON": (b"{'model': 1}", 400, "invalid_json"),
    "an unknown model": ({"model": "gpt-4o", "messages": USER}, 404, "model_not_found"),
    "many replies": (chat("writer", "x", n=10**9), 400, "invalid_value"),
    "a large request": (chat("writer", "x" * 200_000), 413, "request_too_large"),
}
"""`tests/agents/serving/test_serving.py` has more, for the same reader."""


def test_a_wrong_request_gets_an_error_and_the_program_may_go_on():
    def solve(problem: str, base_url: str, key: str) -> str:
        client = Client(base_url, key)
        for name, (body, status, code) in BODIES.items():
            client.send(body)
            seen, error = client.receive()
            assert (seen, error["error"]["code"]) == (status, code), (name, error)
            assert error["error"].keys() == {"message", "type", "param", "code"}, name
        return client.ask("writer", problem)

    episode, facts = played(solve, request_bytes=150_000)
    last = list(BODIES.values())[-1][2]
    assert facts["ended"] == "answer", facts
    assert (facts["refused"], facts["refusal"], len(episode.turns)) == (len(BODIES), last, 1)


@pytest.mark.parametrize("strict", [False, True])
def test_a_field_without_an_effect_is_named_or_of_a_strict_program_refused(strict):
    def solve(problem: str, base_url: str, key: str) -> str:
        client = Client(base_url, key)
        client.send(chat("writer", problem, user="me", seed=1, guided_json={}))
        _, body = client.receive()
        return body["error"]["param"] if strict else ",".join(body["flowzoo"]["ignored"])

    episode, facts = played(solve, strict=strict)
    answer = "seed" if strict else "seed,user,guided_json"
    assert (episode.finished().answer, facts["refused"]) == (answer, strict)
    assert ("strict" in episode.workflow.spec) == strict


HEADERS: dict[str, tuple[str, str, dict[str, str], int, str]] = {
    "another path": ("POST", "/v1/embeddings", {}, 404, "unknown_url"),
    "another method": ("GET", "/v1/chat/completions", {}, 405, "method_not_allowed"),
    "no key": ("POST", "/v1/chat/completions", {"Authorization": ""}, 401, "invalid_api_key"),
    "a wrong key": ("GET", "/v1/models", {"Authorization": "Bearer x"}, 401, "invalid_api_key"),
}


def test_a_request_to_elsewhere_or_without_the_key_is_refused():
    def solve(problem: str, base_url: str, key: str) -> str:
        client = Client(base_url, key)
        for name, (method, path, headers, status, code) in HEADERS.items():
            client.send(chat("writer", "x"), method, path, headers)
            seen, body = client.receive()
            assert (seen, body["error"]["code"]) == (status, code), (name, body)
        return client.ask("writer", problem)

    _, facts = played(solve)
    assert facts["ended"] == "answer", facts
    assert facts["refused"] == 2  # without the key a request belongs to no episode


def crash(problem: str, base_url: str, key: str) -> str:
    Client(base_url, key).ask("writer", problem)
    raise KeyError(f"no {key} at {base_url}")


def leave(problem: str, base_url: str, key: str) -> str:
    sys.exit(3)


async def crash_later(problem: str, base_url: str, key: str) -> str:
    await asyncio.sleep(0)
    raise ValueError("later")


def misname(problem: str, base_url: str, key: str) -> str:
    return Client(base_url, key).ask("gpt-4o", problem)


def count(problem: str, base_url: str, key: str) -> Any:
    return 42


def hang(problem: str, base_url: str, key: str) -> None:
    Client(base_url, key).ask("writer", problem)
    time.sleep(60)


def hang_with_half_a_request(problem: str, base_url: str, key: str) -> None:
    with raw_request(base_url, key, b'{"model"', length=100) as connection:
        connection.recv(1)


def flood(problem: str, base_url: str, key: str) -> None:
    client = Client(base_url, key)
    while True:
        client.ask("writer", problem)


def flood_at_once(problem: str, base_url: str, key: str) -> None:
    clients = [Client(base_url, key) for _ in range(20)]
    for client in clients:
        client.send(chat("writer", problem))
    for client in clients:
        client.reply()


def flood_with_errors(problem: str, base_url: str, key: str) -> None:
    client = Client(base_url, key)
    while True:
        client.send({})
        client.receive()


@pytest.mark.parametrize(
    ("solve", "settings", "ended", "reason", "turns"),
    [
        (crash, {}, "crash", "KeyError: 'no KEY at URL' (test_faults.py, line", 1),
        (leave, {}, "crash", "SystemExit: 3 (test_faults.py, line", 0),
        (crash_later, {}, "crash", "ValueError: later (test_faults.py, line", 0),
        (misname, {}, "crash", "RuntimeError: model_not_found", 0),
        (count, {}, "crash", "expected a str as its result, got int", 0),
        (hang, {"seconds": 1}, "timeout", "it ran for 1 s", 1),
        (hang_with_half_a_request, {"seconds": 0.2}, "timeout", "it ran for 0.2 s", 0),
        (flood, {"max_calls": 3}, "calls", "it made 3 calls and did not end", 3),
        (flood_at_once, {"max_calls": 5}, "calls", "it made 5 calls and did not end", None),
        (flood_with_errors, {}, "refusals", f"{MOST_REFUSED:,} of its requests were refused", 0),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_program_that_fails_ends_its_own_episode(solve, settings, ended, reason, turns):
    episode, facts = played(solve, **settings)
    assert (facts["ended"], facts["reason"][: len(reason)]) == (ended, reason)
    assert turns is None or len(episode.turns) == turns
    assert not [run for run in door().runs.values() if run.program.run is solve]


@pytest.mark.parametrize("repeats", [True, False])
def test_a_request_that_is_given_up_before_it_is_a_turn_is_a_turn(repeats):
    def solve(problem: str, base_url: str, key: str) -> str:
        run = door().runs[key]
        with raw_request(base_url, key, json.dumps(chat("writer", problem)).encode()):
            wait_for(lambda: run.open)
        wait_for(lambda: run.open[0].is_left)
        return Client(base_url, key).ask("writer", problem if repeats else "something else")

    episode, facts = played(solve, at_once=2, settle=0.5)
    assert (facts["ended"], facts["repeated"], facts["unread"]) == ("answer", repeats, not repeats)
    assert len(episode.turns) == 2 - repeats


def test_a_deferred_request_whose_client_left_stays_open():
    are_open, has_left = threading.Event(), threading.Event()

    def solve(problem: str, base_url: str, key: str) -> str:
        first = Client(base_url, key)
        first.send(chat("writer", "a"))
        with raw_request(base_url, key, json.dumps(chat("writer", "b")).encode()):
            are_open.wait(20)
        has_left.wait(20)
        reply = first.reply()
        return Client(base_url, key).ask("writer", problem) + reply

    episode, run = start_run(OpenAIProgram(solve, roles="writer", at_once=2, settle=1))
    entries = list(run.requests)
    assert sorted(entry.request.messages[0][1] for entry in entries) == ["a", "b"]
    are_open.set()
    wait_for(lambda: any(entry.is_left for entry in entries))
    has_left.set()
    while not episode.done:
        episode.reply("writer_0", "1")
        advance(episode)
    asked = [turn.messages[0]["content"] for turn in episode.turns]
    assert asked == ["a", episode.workflow.task.prompt(episode.problem)]  # texts in order
    assert (episode.finished().answer, run.calls) == ("11", 3)


def test_open_requests_are_bounded_together(monkeypatch):
    monkeypatch.setattr(door_run, "MOST_OPEN_CHARACTERS", 30)
    errors: list[str] = []

    def solve(problem: str, base_url: str, key: str) -> str:
        clients = [Client(base_url, key) for _ in range(2)]
        for client in clients:
            client.send(chat("writer", "x" * 20))
        for client in clients:
            status, body = client.receive()
            if status != 200:
                errors.append(body["error"]["code"])
        return "7"

    workflow = OpenAIProgram(solve, roles="writer", at_once=2, settle=1)
    (episode,) = play_together(workflow)
    assert errors == ["open_requests_too_large"]
    assert (episode.finished().facts["refused"], len(episode.turns)) == (1, 1)


def test_a_thread_that_a_program_leaves_behind_is_refused():
    errors: list[str] = []

    def late(base_url: str, key: str) -> None:
        try:
            Client(base_url, key).ask("writer", "late")
        except RuntimeError as error:
            errors.append(str(error))

    def solve(problem: str, base_url: str, key: str) -> str:
        thread = threading.Thread(target=late, args=(base_url, key))
        threads.append(thread)
        thread.start()
        wait_for(lambda: door().runs[key].open)
        return "7"

    threads: list[threading.Thread] = []
    _, facts = played(solve, at_once=2, settle=5)
    threads[0].join(20)
    assert (facts["ended"], errors) == ("answer", ["episode_ended"])


COMMANDS = {
    "exit": ("import sys; sys.exit('no luck')", "crash", "exit status 1: no luck"),
    "traceback": ("1/0", "crash", "exit status 1: ZeroDivisionError: division by zero"),
    "signal": ("import os; os.kill(os.getpid(), 9)", "crash", "signal 9"),
    "flood": ("while True: print('x' * 9999)", "output", "it printed more than 1,048,576 bytes"),
    "hang": ("import time; time.sleep(60)", "timeout", "it ran for 1 s"),
    "child": (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; "
        "time.sleep(60)']); print(7)", "answer", "",
    ),
    "bytes": ("import sys; sys.stdout.buffer.write(b'\\xff7')", "answer", ""),
    "silent": ("", "answer", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_fails(name):
    source, ended, reason = COMMANDS[name]
    limits = {"seconds": 1} if name == "hang" else {}
    episode, facts = played((sys.executable, "-S", "-c", source), **limits)
    assert (facts["ended"], facts["reason"]) == (ended, reason)
    assert episode.finished().answer == {"child": "7", "bytes": "\ufffd7"}.get(name)


def test_a_command_that_is_gone_when_it_is_started(tmp_path):
    file = tmp_path / "agent"
    file.write_text("#!/bin/sh\n", encoding="utf-8")
    file.chmod(0o755)
    workflow = OpenAIProgram(str(file), roles="writer")
    file.unlink()
    (episode,) = play_together(workflow)
    assert episode.finished().facts["reason"].startswith(f"{file} cannot be started: No such file")


def test_nothing_of_the_command_is_a_shell_and_its_environment_names_the_door():
    source = "import os, sys; print(sys.argv[1], os.environ['OPENAI_BASE_URL'], sys.stdin.read())"
    words = (sys.executable, "-S", "-c", source, "$(id); `id` > x")
    episode, _ = played(words)
    assert episode.finished().answer is not None
    shown, question = episode.finished().answer.split(door().base_url)
    assert shown.strip() == words[-1]
    assert question.strip() == REVIEWED.task.prompt(episode.problem).strip()


def test_the_first_failure_of_a_kind_is_logged(caplog):
    workflow = OpenAIProgram(misname, roles="reader", at_once=1)
    with caplog.at_level(logging.WARNING, "flowzoo"):
        play_together(workflow, workflow)
    assert len(caplog.messages) == 1
    assert "ended by crash: RuntimeError: model_not_found" in caplog.messages[0]


def test_an_advance_that_is_cancelled_ends_its_program():
    workflow = OpenAIProgram((sys.executable, "-c", "import time; time.sleep(60)"), roles="writer")
    episode = Episode(workflow, workflow.task.problem(0), "e")
    (future,) = submit([effect for _, effect in episode.pending_effects])  # type: ignore[misc]

    def is_there() -> bool:
        return any(run.program == workflow.program for run in list(door().runs.values()))

    wait_for(is_there)
    future.cancel()
    wait_for(lambda: not is_there())
    assert advance_all([]) == []


def test_the_door_needs_its_libraries(monkeypatch):
    monkeypatch.setattr(server, "_DOORS", [])
    monkeypatch.setitem(sys.modules, "flowzoo.envs.door.app", None)
    with pytest.raises(MissingExtraError, match="programs"):
        door()


def test_a_forked_process_has_a_door_of_its_own():
    here, (read, write) = door(), os.pipe()
    child = os.fork()
    if not child:
        (episode,) = play_together(OpenAIProgram(reviewed, roles="writer,reviewer", at_once=1))
        os.write(write, str([door() is not here, episode.finished().facts["ended"]]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 99) == b"[True, 'answer']"


@pytest.fixture
def fresh_door(monkeypatch: pytest.MonkeyPatch) -> None:
    """A door without threads of earlier tests."""
    monkeypatch.setattr(server, "_DOORS", [])


def test_threads_of_hung_functions_are_bounded(monkeypatch, fresh_door):
    monkeypatch.setattr(launch, "MOST_THREADS", 3)
    over, started = threading.Event(), []

    def hang(problem: str, base_url: str, key: str) -> str:
        started.append(threading.current_thread())
        over.wait(60)
        return "late"

    hanging = OpenAIProgram(hang, roles="writer", at_once=1, seconds=0.05)
    try:
        for _ in range(3):
            (episode,) = play_together(hanging)
            assert episode.finished().facts["ended"] == "timeout"
        for program in (hanging, REVIEWED):  # there is no room for any function
            (episode,) = play_together(program)
            facts = episode.finished().facts
            assert (facts["ended"], facts["failed"]) == ("threads", True)
            assert "functions of 3 ended episodes are still running" in facts["reason"]
            assert "use a command, which can be killed" in facts["reason"]
            assert episode.finished().answer is None
        command = (sys.executable, "-S", "-c", "print(7)")
        (episode,) = play_together(OpenAIProgram(command, roles="writer"))
        assert episode.finished().answer == "7"
        assert len(started) == 3
    finally:
        over.set()
    for thread in started:
        thread.join(30)
    (episode,) = play_together(REVIEWED)
    assert episode.finished().facts["ended"] == "answer"
    assert not door().runs


def run_of(key: str) -> door_run.ProgramRun:
    return door().runs[key]


def test_bytes_of_requests_that_a_program_sends_together_are_bounded(monkeypatch):
    monkeypatch.setattr(door_run, "MOST_INCOMING", 1000)

    def solve(problem: str, base_url: str, key: str) -> Any:
        client, room = Client(base_url, key), run_of(key).room
        with ExitStack() as stack:
            for count in (400, 800):
                stack.enter_context(raw_request(base_url, key, b"x" * 400, 10**6))
                wait_for(lambda count=count: room.held == count)  # type: ignore[misc]
            client.send(chat("writer", "x" * 300))
            status, body = client.receive()
        wait_for(lambda: room.held == 0)
        assert (status, body["error"]["code"]) == (429, "too_many_bytes")
        assert body["error"]["message"].endswith("1,000 bytes together: try again.")
        return client.ask("writer", problem)

    (episode,) = play_together(OpenAIProgram(solve, roles="writer", at_once=1), reply="7")
    facts = episode.finished().facts
    assert (facts["ended"], facts["refused"], facts["refusal"]) == ("answer", 1, "too_many_bytes")
    assert (episode.finished().answer, len(episode.turns)) == ("7", 1)


def test_bytes_that_all_programs_send_together_are_bounded(monkeypatch, fresh_door):
    monkeypatch.setattr("flowzoo.front.front.MOST_INCOMING", 1000)
    holds, may_end = threading.Event(), threading.Event()

    def hold(problem: str, base_url: str, key: str) -> str:
        with raw_request(base_url, key, b"x" * 900, 10**6):
            wait_for(lambda: run_of(key).room.held == 900)
            holds.set()
            assert may_end.wait(60)
        return "1"

    def solve(problem: str, base_url: str, key: str) -> str:
        assert holds.wait(60)
        client = Client(base_url, key)
        client.send(chat("writer", "x" * 300))
        status, body = client.receive()
        assert (status, body["error"]["code"]) == (429, "too_many_bytes")
        may_end.set()
        with OpenAI(base_url=base_url, api_key=key, max_retries=9) as official:  # comes again
            reply = official.chat.completions.create(**chat("writer", "x" * 300))
        return reply.choices[0].message.content or ""

    programs = [OpenAIProgram(run, roles="writer", at_once=1) for run in (hold, solve)]
    held, refused = play_together(*programs, reply="7")
    assert (held.finished().answer, refused.finished().answer) == ("1", "7")
    assert refused.finished().facts["refusal"] == "too_many_bytes"


def test_what_a_hung_program_has_sent_is_forgotten_when_its_episode_ends():
    over, errors, rooms = threading.Event(), list[bytes](), list[BodyRoom]()

    def hang(problem: str, base_url: str, key: str) -> str:
        rooms.append(run_of(key).room)
        with raw_request(base_url, key, b"x" * 5000, 10**6) as connection:
            answer = b""  # once the episode has ended
            while not answer.endswith(b"}}"):
                answer += connection.recv(4096)
        errors.append(answer)
        over.set()
        return "late"

    (episode,) = play_together(OpenAIProgram(hang, roles="writer", at_once=1, seconds=1))
    assert episode.finished().facts["ended"] == "timeout"
    assert over.wait(30)
    assert errors[0].startswith(b"HTTP/1.1 403 ")
    assert b"episode_ended" in errors[0]
    wait_for(lambda: rooms[0].held == 0)


HOLD = "import os, sys, time; print(7, flush=True); os.fork() or (os.setsid(), time.sleep(600))"
LATE = "import os, sys, time; os.fork() or (os.setsid(), time.sleep(600)); time.sleep(600)"
KEYS = """
import glob, os, time
def keys():
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            words = open(path, "rb").read().split(b"\\0")
        except OSError:
            continue
        yield from (word for word in words if word.startswith(b"OPENAI_API_KEY=flowzoo-"))
end, found = time.monotonic() + 4, set()
while time.monotonic() < end:
    found |= {*keys()}
print(len(found))
"""


def command(source: str, *words: str) -> OpenAIProgram:
    return OpenAIProgram((sys.executable, "-S", "-c", source, *words), roles="writer", seconds=20)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_an_answer_counts_although_a_daemon_holds_the_output():
    token, start = secrets.token_hex(8), time.monotonic()
    (episode,) = play_together(command(HOLD, token))
    record = episode.finished()
    assert (record.answer, record.facts["ended"]) == ("7", "answer")
    assert time.monotonic() - start < 15
    assert not commands_with(token)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_daemon_ends_with_its_episode():
    token = secrets.token_hex(8)
    workflow = OpenAIProgram((sys.executable, "-S", "-c", LATE, token), roles="writer", seconds=1.0)
    (episode,) = play_together(workflow)
    assert episode.finished().facts["ended"] == "timeout"
    wait_for(lambda: not commands_with(token))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_command_does_not_see_the_keys_of_others():
    workflow = command(KEYS)
    if play_together(command("import os; print(os.getpid())"))[0].finished().answer != "2":
        pytest.skip("this machine allows no namespaces")
    assert [episode.finished().answer for episode in play_together(workflow, workflow)] == ["1"] * 2
