"""Agent programs of the tests, which speak to the door without a client library, and their play."""

import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from flowzoo.envs import Episode, Workflow
from flowzoo.envs.door.run import ProgramRun
from flowzoo.envs.door.server import door
from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.external.program import OpenAIProgram
from flowzoo.envs.testing import advance


class Client:
    """One connection to the door."""

    def __init__(self, base_url: str, key: str) -> None:
        self.connection = http.client.HTTPConnection(urlsplit(base_url).netloc)
        self.key = key

    def __del__(self) -> None:
        self.connection.close()

    def send(
        self,
        body: Any,
        method: str = "POST",
        path: str = "/v1/chat/completions",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a request; a body that is no bytes becomes JSON."""
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        authorization = {"Authorization": f"Bearer {self.key}"}
        self.connection.request(method, path, raw, {**authorization, **(headers or {})})

    def receive(self) -> tuple[int, Any]:
        """Status and JSON of the answer."""
        response = self.connection.getresponse()
        return response.status, json.loads(response.read())

    def reply(self) -> str:
        """The reply that an answer contains."""
        status, body = self.receive()
        if status != 200:
            raise RuntimeError(body["error"]["code"])
        return body["choices"][0]["message"]["content"]

    def ask(self, model: str, text: str) -> str:
        """Ask an agent."""
        self.send(chat(model, text))
        return self.reply()


def chat(model: str, text: str, **fields: Any) -> dict[str, Any]:
    """The body of a request."""
    return {"model": model, "messages": [{"role": "user", "content": text}], **fields}


@contextmanager
def raw_request(
    base_url: str, key: str, body: bytes, length: int | None = None
) -> Iterator[socket.socket]:
    """A connection on which a request was sent, or with a larger `length` a part of it."""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Length: {len(body) if length is None else length}\r\n\r\n"
    )
    address = urlsplit(base_url)
    with socket.create_connection((str(address.hostname), address.port or 0)) as connection:
        connection.sendall(head.encode() + body)
        yield connection


def reviewed(problem: str, base_url: str, key: str) -> str:
    """One agent after the other."""
    client = Client(base_url, key)
    return client.ask("reviewer", f"{problem}\n\n{client.ask('writer', problem)}")


def drafted(problem: str, base_url: str, key: str) -> str:
    """Two drafts at the same time, then a review."""
    clients = [Client(base_url, key) for _ in range(2)]
    for number, client in enumerate(clients):
        client.send(chat(f"writer_{number}", problem))
    drafts = [client.reply() for client in clients]
    return clients[0].ask("reviewer", "\n\n".join([problem, *drafts]))


def threaded(problem: str, base_url: str, key: str) -> str:
    """Two drafts by threads, which name their role only."""
    with ThreadPoolExecutor(2) as pool:
        asks = [pool.submit(Client(base_url, key).ask, "writer", f"{n}: {problem}") for n in "ba"]
        return "\n\n".join(ask.result() for ask in asks)


REVIEWED = OpenAIProgram(reviewed, roles="writer,reviewer", at_once=1)
DRAFTED = OpenAIProgram(drafted, roles={"writer": 2, "reviewer": 1}, at_once=2, settle=0.3)


def start(workflow: OpenAIProgram) -> Episode:
    """An episode whose program has asked."""
    episode = Episode(workflow, workflow.task.problem(0), "e")
    advance(episode)
    return episode


def start_run(workflow: OpenAIProgram) -> tuple[Episode, ProgramRun]:
    """An episode whose program has asked, and its run."""
    episode = start(workflow)
    (run,) = [run for run in door().runs.values() if run.program == workflow.program]
    return episode, run


def play_together(*workflows: Workflow, reply: str = "\\boxed{1}") -> list[Episode]:
    """Episodes of one problem that move on at the same time; every ask has the same reply."""
    episodes = [Episode(workflow, workflow.task.problem(0), "e") for workflow in workflows]
    while busy := [episode for episode in episodes if not episode.done]:
        jobs = [(episode, job) for episode in busy for job in episode.pending_effects]
        results = resolve(busy[0].workflow.task, [job for _, job in jobs])
        for episode in busy:
            own = [r for (of, _), r in zip(jobs, results, strict=True) if of is episode]
            if own:
                episode.resolve(own)
            for turn in episode.waiting:
                episode.reply(turn.agent, reply)
    return episodes
