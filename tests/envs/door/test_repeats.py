"""Requests that are sent again, and replies that are not read to their end."""

import http.client
import json
import socket
import threading
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from agent_programs import Client, chat, play_together, raw_request, start, start_run
from envs.door import mixture
from processes import wait_for

from flowzoo.agents import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.envs import EpisodeRecord
from flowzoo.envs.door import app
from flowzoo.envs.door.server import door
from flowzoo.envs.external.program import OpenAIProgram
from flowzoo.envs.testing import advance
from flowzoo.envs.testing.workflow_checks import check_forks

Leave = Callable[[str, str, str], None]


def encoded(text: str, **fields: Any) -> bytes:
    """The body of a request to the writer."""
    return json.dumps(chat("writer", text, **fields)).encode()


def leave_a_busy_door(base_url: str, key: str, text: str) -> None:
    """Ask and leave while the door does other work, and give it the next request with the end."""
    begun, may_go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_go_on.wait(20)

    door().loop.call_soon_threadsafe(work)
    begun.wait(20)
    with raw_request(base_url, key, encoded(text)):
        pass
    timer = threading.Timer(0.2, may_go_on.set)  # after the request that follows
    timer.start()


def leave_amid_the_reply(base_url: str, key: str, text: str) -> None:
    """Read one byte of the reply."""
    with raw_request(base_url, key, encoded(text)) as connection:
        assert connection.recv(1) == b"H"


def leave_a_closed_reply(base_url: str, key: str, text: str) -> None:
    """Read one byte of a reply after which the door is to close."""
    body, address = encoded(text), urlsplit(base_url)
    head = f"Authorization: Bearer {key}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    request = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode() + body
    with socket.create_connection((str(address.hostname), address.port or 0)) as connection:
        connection.sendall(request)
        assert connection.recv(1) == b"H"
        wait_for(lambda: b"total_tokens" in connection.recv(2**16, socket.MSG_PEEK))


def leave_the_last_events(base_url: str, key: str, text: str) -> None:
    """Wait until a whole stream has arrived, and do not read it."""
    with raw_request(base_url, key, encoded(text, stream=True)) as connection:
        wait_for(lambda: b"[DONE]" in connection.recv(2**16, socket.MSG_PEEK))


LEAVES: Mapping[str, Leave] = {
    "busy": leave_a_busy_door,
    "reply": leave_amid_the_reply,
    "close": leave_a_closed_reply,
    "stream": leave_the_last_events,
}


def asking(leave: Leave | None) -> Callable[[str, str, str], str]:
    """A program of two agents, of which each is asked again after its client has left."""

    def solve(problem: str, base_url: str, key: str) -> str:
        said = problem
        for model in ("writer", "reviewer"):
            if leave is not None and model == "writer":
                leave(base_url, key, said)
            said = f"{problem}\n{Client(base_url, key).ask(model, said)}"
        return said

    return solve


def played(solve: Callable[[str, str, str], str]) -> list[EpisodeRecord]:
    """Records of four episodes of a program with a writer and a reviewer."""
    workflow = OpenAIProgram(solve, roles="writer,reviewer", at_once=1)
    policies = PolicyMap(dict.fromkeys(("writer", "reviewer"), ScriptedPolicy(workflow, 0.5)))
    return Rollout(workflow, policies, seed=3).run(
        [EpisodeJob(workflow.task.problem(number)) for number in range(4)]
    )


@pytest.mark.parametrize("name", LEAVES)
def test_a_request_that_is_sent_again_is_the_same_turn(name):
    for calm, hasty in zip(played(asking(None)), played(asking(LEAVES[name])), strict=True):
        assert hasty.calls == calm.calls
        assert dict(hasty.facts) == {**calm.facts, "repeated": 1}
        assert (hasty.answer, hasty.score) == (calm.answer, calm.score)


def test_a_reply_that_was_left_unread_is_counted_if_nobody_asks_again():
    def solve(problem: str, base_url: str, key: str) -> str:
        leave_amid_the_reply(base_url, key, problem)
        return "7"

    (episode,) = play_together(OpenAIProgram(solve, roles="writer", at_once=1))
    facts = episode.finished().facts
    assert (len(episode.turns), facts["unread"], facts["repeated"]) == (1, 1, 0)


def by_connection(base_url: str, key: str, text: str) -> str:
    """Ask on a connection that the client closes after the reply."""
    with raw_request(base_url, key, encoded(text)) as connection:
        response = http.client.HTTPResponse(connection)
        response.begin()
        return json.load(response)["choices"][0]["message"]["content"]


def by_urllib(base_url: str, key: str, text: str) -> str:
    """Ask on a connection that the door is to close."""
    request = urllib.request.Request(f"{base_url}/chat/completions", encoded(text))
    request.add_header("Authorization", f"Bearer {key}")
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["choices"][0]["message"]["content"]


@pytest.mark.parametrize("ask", [by_connection, by_urllib])
def test_a_request_that_is_sent_again_after_its_reply_is_a_new_turn(ask):
    def solve(problem: str, base_url: str, key: str) -> str:
        return "".join(ask(base_url, key, problem) for _ in range(3))

    episode = start(OpenAIProgram(solve, roles="writer", at_once=1))
    for reply in "123":
        episode.reply("writer_0", reply)
        advance(episode)
    assert (episode.finished().answer, episode.finished().facts["repeated"]) == ("123", 0)


def test_equal_requests_of_connected_clients_are_different_turns():
    def solve(problem: str, base_url: str, key: str) -> str:
        clients = [Client(base_url, key) for _ in range(3)]
        clients[0].send(chat("writer", problem))
        clients[0].connection.sock.recv(1, socket.MSG_PEEK)  # it has a reply, and reads it later
        for client in clients[1:]:
            client.send(chat("writer", problem))
        return "".join(client.reply() for client in clients)

    (episode,) = play_together(OpenAIProgram(solve, roles={"writer": 2}, at_once=1), reply="7")
    facts = episode.finished().facts
    assert (episode.finished().answer, len(episode.turns), facts["repeated"]) == ("777", 3, 0)


@pytest.mark.parametrize(("keys", "turns"), [("aa", 1), ("ab", 2)])
def test_an_idempotency_key_tells_a_repeated_request_beside_an_open_connection(keys, turns):
    def solve(problem: str, base_url: str, key: str) -> str:
        clients = [Client(base_url, key) for _ in keys]
        for client, name in zip(clients, keys, strict=True):
            client.send(chat("writer", problem), headers={"Idempotency-Key": name})
        return "".join(client.reply() for client in clients)

    (episode,) = play_together(OpenAIProgram(solve, roles={"writer": 2}, at_once=1), reply="7")
    facts = episode.finished().facts
    assert (episode.finished().answer, len(episode.turns)) == ("77", turns)
    assert (facts["repeated"], facts["unread"]) == (2 - turns, 0)


def test_a_request_that_is_sent_again_before_it_is_a_turn_keeps_its_place():
    numbers: list[str] = []

    def solve(problem: str, base_url: str, key: str) -> str:
        run = door().runs[key]
        with raw_request(base_url, key, encoded(problem)):
            wait_for(lambda: run.requests)
        other, again = Client(base_url, key), Client(base_url, key)
        other.send(chat("writer", "other"))
        wait_for(lambda: len(run.requests) == 2)
        again.send(chat("writer", problem))
        for client in (again, other):
            status, body = client.receive()
            assert status == 200
            numbers.append(body["id"])
        return "7"

    workflow = OpenAIProgram(solve, roles={"writer": 3}, at_once=3, settle=0.5)
    (episode,) = play_together(workflow)
    assert [turn.phase for turn in episode.turns] == [0, 0]
    assert numbers == ["chatcmpl-1", "chatcmpl-2"]


@pytest.mark.parametrize(
    ("tries", "turns"), [("01", 1), ("00", 2), ("012", 1), ("02", 2), ("001", 3)]
)
def test_the_next_try_of_the_official_client_is_the_same_turn(tries, turns):
    def solve(problem: str, base_url: str, key: str) -> str:
        said = ""
        for number in tries:  # the reply of each is read, and its connection closed
            client = Client(base_url, key)
            client.send(chat("writer", problem), headers={"x-stainless-retry-count": number})
            said += client.reply()
            client.connection.close()
        return said

    (episode,) = play_together(OpenAIProgram(solve, roles="writer", at_once=1), reply="7")
    facts = episode.finished().facts
    assert (episode.finished().answer, len(episode.turns)) == ("7" * len(tries), turns)
    assert facts["repeated"] == len(tries) - turns


def test_several_replies_to_a_request_are_as_many_turns():
    def solve(problem: str, base_url: str, key: str) -> str:
        body = encoded(problem, n=3)
        with raw_request(base_url, key, body):
            pass
        client = Client(base_url, key)
        client.send(body)
        _, done = client.receive()
        return "".join(choice["message"]["content"] for choice in done["choices"])

    episode = start(OpenAIProgram(solve, roles={"writer": 2}, at_once=1))
    for reply in "123":
        if not episode.waiting:
            advance(episode)
        episode.reply(episode.waiting[0].agent, reply)
    advance(episode)
    assert episode.finished().answer == "123"
    assert (len(episode.turns), episode.finished().facts["repeated"]) == (3, 1)


LONG = "x" * 2**24
"""A reply that no buffers of a connection take."""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even on a busy machine a client leaves within the seconds before the last events."""
    monkeypatch.setattr(app, "LAST_S", 20.0)


def ask(base_url: str, key: str, text: str, **options: Any) -> Any:
    """A request of the official client; of a stream the chunks."""
    retries = options.pop("max_retries", 0)
    client = openai.OpenAI(base_url=base_url, api_key=key, max_retries=retries, timeout=60)
    return client.chat.completions.create(**chat("writer", text), **options)


def whole(base_url: str, key: str, text: str) -> str:
    """A reply without a stream."""
    return ask(base_url, key, text).choices[0].message.content


def leave_after(count: int) -> Callable[[str, str, str], None]:
    """Read some chunks of a stream (role, text, finish reason) and go away."""

    def read(base_url: str, key: str, text: str) -> None:
        with ask(base_url, key, text, stream=True) as stream:
            for _, _ in zip(range(count), stream, strict=False):
                pass

    return read


def leave_after_bytes(base_url: str, key: str, text: str) -> None:
    """Read the first bytes of a stream, on a connection of one's own, and go away."""
    body = json.dumps(chat("writer", text, stream=True)).encode()
    with raw_request(base_url, key, body) as connection:
        assert connection.recv(15) == b"HTTP/1.1 200 OK"


HALVES = {"role": leave_after(1), "text": leave_after(2), "bytes": leave_after_bytes}


def asks_again(half: Callable[[str, str, str], None], times: int) -> OpenAIProgram:
    """A program that reads its first stream by halves, and then asks the same in whole."""

    def solve(problem: str, base_url: str, key: str) -> str:
        for _ in range(times):
            half(base_url, key, problem)
        return whole(base_url, key, problem)

    return OpenAIProgram(solve, roles="writer", at_once=1)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("half", HALVES)
def test_a_stream_that_was_left_half_read_is_the_same_turn(half, times, patient):
    (episode,) = play_together(asks_again(HALVES[half], times), reply="once")
    facts = episode.finished().facts
    assert (episode.finished().answer, len(episode.turns)) == ("once", 1)
    assert (facts["ended"], facts["unread"], facts["refused"]) == ("answer", 0, 0)


@pytest.mark.parametrize("half", ["role", "bytes"])
def test_a_long_stream_that_was_left_half_read_is_the_same_turn(half):
    (episode,) = play_together(asks_again(HALVES[half], 1), reply=LONG)
    assert episode.finished().answer == LONG
    assert (len(episode.turns), episode.finished().facts["unread"]) == (1, 0)


def left_once(problem: str, base_url: str, key: str) -> str:
    """Leaves a stream, and asks again."""
    leave_after(1)(base_url, key, problem)
    return whole(base_url, key, problem)


def test_a_copy_of_an_episode_goes_on_where_streams_were_left(patient):
    workflow = OpenAIProgram(left_once, roles="writer", at_once=1)
    check_forks(workflow)
    episode = start(workflow)
    twin = episode.fork()  # has no run: the program is run again
    for copy in (twin, episode):
        copy.reply("writer_0", "7")
        advance(copy)
    assert twin.finished() == episode.finished()


@pytest.mark.parametrize("half", HALVES)
def test_a_stream_that_nobody_reads_on_is_a_turn_with_its_reply(half, patient):
    def solve(problem: str, base_url: str, key: str) -> str:
        HALVES[half](base_url, key, problem)
        return "7"

    (episode,) = play_together(OpenAIProgram(solve, roles="writer", at_once=1), reply="lost")
    facts = episode.finished().facts
    assert (facts["ended"], facts["unread"], episode.finished().answer) == ("answer", 1, "7")
    assert [turn.said for turn in episode.turns] == ["lost"]


def test_a_stream_that_was_read_to_its_finish_reason_is_not_asked_again():
    def solve(problem: str, base_url: str, key: str) -> str:
        leave_after(3)(base_url, key, problem)
        with ask(base_url, key, problem, stream=True) as stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        return text + whole(base_url, key, problem)

    episode = start(OpenAIProgram(solve, roles="writer", at_once=1))
    for reply in ("1", "2", "3"):
        episode.reply("writer_0", reply)
        advance(episode)
    assert (episode.finished().answer, episode.finished().facts["unread"]) == ("23", 0)


def test_a_client_that_gives_up_for_good_leaves_a_turn_with_its_reply():
    def solve(problem: str, base_url: str, key: str) -> str:
        with pytest.raises(openai.APITimeoutError):
            ask(base_url, key, problem, timeout=1)
        return whole(base_url, key, "something else")

    episode, run = start_run(OpenAIProgram(solve, roles="writer", at_once=1))
    (entry,) = run.requests
    wait_for(lambda: entry.is_left)
    episode.reply("writer_0", "lost")
    advance(episode)
    episode.reply("writer_0", "7")
    advance(episode)
    assert [turn.said for turn in episode.turns] == ["lost", "7"]
    assert (episode.finished().answer, run.calls) == ("7", 2)
    assert episode.finished().facts["unread"] == 1


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.full)])
def test_a_mixture_of_clients_plays_as_patient_ones(seed):
    calm = mixture.played(["patient"], 0, 16)
    hasty = mixture.played(list(mixture.KINDS), seed, 16)
    assert not any(mixture.differences(calm, hasty).values())
    assert sum(record.facts["repeated"] for record in hasty) > 4
