"""Programs that do what they should not: each ends its own episode, for a reason that is named."""

import asyncio
import json
import logging
import os
import sys
import threading
import time
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
from processes import wait_for

from flowzoo.envs import Episode
from flowzoo.envs.door import run as door_run
from flowzoo.envs.door import server
from flowzoo.envs.door.run import MOST_REFUSED
from flowzoo.envs.door.server import advance_all, door, submit
from flowzoo.envs.external.program import OpenAIProgram
from flowzoo.envs.testing import advance
from flowzoo.errors import MissingExtraError

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


def with_message(**message: Any) -> dict[str, Any]:
    return {"model": "writer", "messages": [message]}


BODIES: dict[str, tuple[Any, int, str]] = {
    "no body": (b"", 400, "invalid_json"),
    "no JSON": (b"{'model': 1}", 400, "invalid_json"),
    "half of a JSON": (b'{"model": "writer", "mess', 400, "invalid_json"),
    "no UTF-8": (b'{"model": "\xff"}', 400, "invalid_json"),
    "JSON in UTF-16": ('{"model": "writer"}'.encode("utf-16"), 400, "invalid_json"),
    "a deep JSON": (b"[" * 10_000, 400, "invalid_json"),
    "a long number": (b'{"n": ' + b"9" * 9000 + b"}", 400, "invalid_json"),
    "a list": ([], 400, "invalid_type"),
    "no model": ({"messages": USER}, 400, "invalid_type"),
    "a model that is a list": ({"model": ["writer"], "messages": USER}, 400, "invalid_type"),
    "an unknown model": ({"model": "gpt-4o", "messages": USER}, 404, "model_not_found"),
    "no messages": ({"model": "writer"}, 400, "invalid_type"),
    "an empty chat": ({"model": "writer", "messages": []}, 400, "invalid_type"),
    "messages that are a text": ({"model": "writer", "messages": "x"}, 400, "invalid_type"),
    "a message that is a text": ({"model": "writer", "messages": ["x"]}, 400, "invalid_type"),
    "a message without a role": (with_message(content="x"), 400, "invalid_value"),
    "an unknown role": (with_message(role="function", content="x"), 400, "invalid_value"),
    "a role that is a dict": (with_message(role={}, content="x"), 400, "invalid_value"),
    "a message without content": (with_message(role="user"), 400, "invalid_type"),
    "content that is a number": (with_message(role="user", content=3), 400, "invalid_type"),
    "a picture": (
        with_message(role="user", content=[{"type": "image_url", "image_url": {"url": "x"}}]),
        400,
        "unsupported_content",
    ),
    "a part that is a text": (with_message(role="user", content=["x"]), 400, "unsupported_content"),
    "many replies": (chat("writer", "x", n=10**9), 400, "invalid_value"),
    "a note that is a text": (chat("writer", "x", metadata="x"), 400, "invalid_type"),
    "a format": (
        chat("writer", "x", response_format={"type": "grammar"}),
        400,
        "unsupported_value",
    ),
    "a temperature that is a text": (chat("writer", "x", temperature="0"), 400, "invalid_type"),
    "a seed that is a fraction": (chat("writer", "x", seed=0.5), 400, "invalid_type"),
    "tokens that are a truth value": (chat("writer", "x", max_tokens=True), 400, "invalid_type"),
    "a stream that is a number": (chat("writer", "x", stream=1), 400, "invalid_type"),
    "stream options that are a list": (chat("writer", "x", stream_options=[]), 400, "invalid_type"),
    "a stop that is a number": (chat("writer", "x", stop=1), 400, "invalid_type"),
    "an empty stop": (chat("writer", "x", stop=["a", ""]), 400, "invalid_type"),
    "five stops": (chat("writer", "x", stop=list("abcde")), 400, "invalid_type"),
    "large arguments of calls": (
        with_message(
            role="assistant",
            tool_calls=[
                {
                    "id": str(number),
                    "type": "function",
                    "function": {"name": "f", "arguments": f'{{"a": [{",".join(["[]"] * 9000)}]}}'},
                }
                for number in range(2)
            ],
        ),
        413,
        "request_too_large",
    ),
    "a large request": (chat("writer", "x" * 200_000), 413, "request_too_large"),
}


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
    "a wrong key": (
        "POST", "/v1/chat/completions", {"Authorization": "Bearer x"}, 401, "invalid_api_key",
    ),
    "another scheme": (
        "POST", "/v1/chat/completions", {"Authorization": "Basic x"}, 401, "invalid_api_key",
    ),
    "a wrong key elsewhere": (
        "GET", "/v1/models", {"Authorization": "Bearer x"}, 401, "invalid_api_key",
    ),
    "a wrong key nowhere": ("POST", "/", {"Authorization": "Bearer x"}, 401, "invalid_api_key"),
}  # fmt: skip


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


@pytest.mark.parametrize("again_first", [True, False])
def test_a_request_that_is_sent_again_is_the_same_turn(again_first):
    is_turn, may_ask = threading.Event(), threading.Event()

    def solve(problem: str, base_url: str, key: str) -> str:
        with raw_request(base_url, key, json.dumps(chat("writer", problem)).encode()):
            is_turn.wait(20)
        may_ask.wait(20)
        return Client(base_url, key).ask("writer", problem)

    episode, run = start_run(OpenAIProgram(solve, roles="writer", at_once=1))
    (entry,) = run.requests
    is_turn.set()
    wait_for(lambda: entry.is_left)
    if again_first:
        may_ask.set()
        wait_for(lambda: not entry.is_left)
    episode.reply("writer_0", "once")
    may_ask.set()
    advance(episode)
    assert (episode.finished().answer, len(episode.turns), run.calls) == ("once", 1, 1)


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


def test_a_stream_that_is_not_read_to_its_end():
    def solve(problem: str, base_url: str, key: str) -> str:
        body = json.dumps(chat("writer", problem, stream=True)).encode()
        with raw_request(base_url, key, body) as connection:
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        return "7"

    _, facts = played(solve)
    assert facts["ended"] == "answer"


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
    monkeypatch.setitem(sys.modules, "flowzoo.envs.door.program_connection", None)
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
