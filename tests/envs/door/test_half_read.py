"""Clients that do not wait for their reply, or read half of it: the turn is kept for them."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from agent_programs import chat, play_together, raw_request, start, start_run
from processes import wait_for

from flowzoo.envs.door import app
from flowzoo.envs.external.program import OpenAIProgram
from flowzoo.envs.testing import advance
from flowzoo.envs.testing.workflow_checks import check_forks

openai = pytest.importorskip("openai")
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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("retries", [0, 2])
def test_a_client_that_gives_up_and_asks_again_is_at_the_same_turn(retries, stream):
    may_ask = threading.Event()

    def solve(problem: str, base_url: str, key: str) -> str:
        try:  # the client's own retries may get the reply
            reply = ask(base_url, key, problem, timeout=1, max_retries=retries, stream=stream)
            if not stream:
                return reply.choices[0].message.content
            return "".join(chunk.choices[0].delta.content or "" for chunk in reply)
        except openai.APITimeoutError:
            may_ask.wait(60)
            return whole(base_url, key, problem)

    episode, run = start_run(OpenAIProgram(solve, roles="writer", at_once=1))
    (entry,) = run.requests
    wait_for(lambda: entry.is_left)
    may_ask.set()
    wait_for(lambda: not entry.is_left)
    episode.reply("writer_0", "once")
    advance(episode)
    assert (episode.finished().answer, len(episode.turns), run.calls) == ("once", 1, 1)
    assert episode.finished().facts["unread"] == 0


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
