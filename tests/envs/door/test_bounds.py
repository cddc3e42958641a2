"""What programs may take of the door together: threads, bytes."""

import sys
import threading
from contextlib import ExitStack
from typing import Any

import pytest
from agent_programs import REVIEWED, Client, chat, play_together, raw_request
from openai import OpenAI
from processes import wait_for

from flowzoo.envs.door import launch, server
from flowzoo.envs.door import run as door_run
from flowzoo.envs.door.server import door
from flowzoo.envs.external.program import OpenAIProgram
from flowzoo.front.refusal import BodyRoom


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
