"""An open turn of an episode, the digest of its prompt, and the error of a failing script."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from flowzoo.envs.script import Ask, Effect, Grade, Message, Outcome, Reply, Run, Search
from flowzoo.errors import FlowzooError
from flowzoo.sandbox.program import CallTest, CheckTest, Limits, StdinTest


class WorkflowError(FlowzooError, RuntimeError):
    """A workflow's script failed or yielded something it may not.

    Attributes:
        problem: id of the problem.
        transcript: what was said so far, as plain dicts.
    """

    def __init__(self, message: str, problem: str = "", transcript: list[Any] | None = None):
        super().__init__(message)
        self.problem = problem
        self.transcript = transcript or []

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with all three parts, so that worker processes can report it."""
        return type(self), (str(self), self.problem, self.transcript)


class UngradedError(WorkflowError):
    """The sandbox could not judge what an episode asked it to: its end has no score."""


class Turn:
    """One ask that was opened: who, where in the episode, what it sees and, later, its reply."""

    __slots__ = (
        "agent", "ask", "call", "logged", "messages", "phase", "reply", "said", "slot", "turn",
    )  # fmt: skip

    def __init__(self, ask: Ask, call: int, slot: int, turn: int, phase: int, logged: int) -> None:
        self.ask = ask
        self.agent = ask.agent
        self.call = call
        self.slot = slot
        self.turn = turn
        self.phase = phase
        self.logged = logged
        self.reply: Reply | None = None
        """What the script was given: without thoughts, unless the workflow shows them."""
        self.said = ""
        """The whole reply, thoughts included, once there is one."""
        seen = ask.messages
        self.messages: list[Message] = (
            [{"role": "user", "content": seen}]
            if isinstance(seen, str)
            else [message.copy() for message in seen]
        )

    def observe(self) -> list[Message]:
        """A fresh copy of the messages, safe to change."""
        return [message.copy() for message in self.messages]


def is_chat(seen: object) -> bool:
    """Whether `seen` can be a prompt: a str, or a list or tuple of messages."""
    if isinstance(seen, str):
        return True
    return isinstance(seen, (list, tuple)) and all(
        isinstance(message, dict)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
        for message in seen
    )


def score_fault(score: object) -> str:
    """What is wrong with a score, for after "a score that is"; empty if nothing is."""
    if not isinstance(score, Real):
        return f"no number, but {type(score).__name__} {score!r:.60}"
    return "" if 0 <= float(score) <= 1 else f"not from 0 to 1, but {score!r}"


def outcome_fault(outcome: Any) -> str:
    """What is wrong with how an episode ended; empty if nothing is."""
    if type(outcome) is not Outcome:
        return f"a script must return an Outcome, got {type(outcome).__name__}"
    answer, score, facts, _ = outcome
    if not (type(score) is float and 0.0 <= score <= 1.0):  # never of NaN
        fault = score_fault(score)
        if fault:
            return f"the script returned an Outcome with a score that is {fault}"
    if answer is not None and not isinstance(answer, str):
        return f"the answer of an Outcome must be a str or None, got {type(answer).__name__}"
    if type(facts) is not dict and not isinstance(facts, Mapping):
        return f"the facts of an Outcome must be a mapping, got {type(facts).__name__}"
    return ""


def effect_fault(effect: Effect) -> str:
    """What is wrong with an effect a script yielded; empty if nothing is."""
    if type(effect) is Grade:  # the usual case, at half the cost
        answer, of = effect
        if (answer is None or type(answer) is str) and (of is None or type(of) is Reply):
            return ""
    if isinstance(effect, Run):
        return _run_fault(effect)
    if isinstance(effect, Search):
        return _search_fault(effect)
    answers = (effect.answer,) if isinstance(effect, Grade) else effect.answers
    if not isinstance(answers, tuple):
        return f"Classes takes a tuple of answers, got {type(answers).__name__}"
    for answer in answers:
        if answer is not None and not isinstance(answer, str):
            return f"an answer must be a str or None, got {type(answer).__name__}"
    if isinstance(effect, Grade) and not isinstance(effect.of, (Reply, type(None))):
        return f"Grade(of=...) takes a Reply, got {type(effect.of).__name__}"
    return ""


def _search_fault(effect: Search) -> str:
    if not isinstance(effect.query, str):
        return f"Search takes a str as query, got {type(effect.query).__name__}"
    if not isinstance(effect.k, int) or effect.k < 1:
        return f"Search(k=...) takes a whole number >= 1, got {effect.k!r}"
    return ""


def _run_fault(run: Run) -> str:
    for name, kinds in (("source", str), ("stdin", str), ("entry", (str, type(None)))):
        value = getattr(run, name)
        if not isinstance(value, kinds):
            return f"Run(..., {name}=...) takes a str, got {type(value).__name__}"
    if not isinstance(run.tests, tuple):
        return f"Run takes a tuple of tests, got {type(run.tests).__name__}"
    for test in run.tests:
        if not isinstance(test, (StdinTest, CallTest, CheckTest)):
            return f"a test must be a StdinTest, CallTest or CheckTest, got {type(test).__name__}"
    if not isinstance(run.limits, (Limits, type(None))):
        return f"Run(limits=...) takes Limits, got {type(run.limits).__name__}"
    return ""


def prompt_digest(messages: Sequence[Message]) -> bytes:
    """16 bytes that identify a prompt, on every machine and in every process."""
    hasher = hashlib.blake2b(digest_size=16)
    for message in messages:
        for part in (message["role"], message["content"]):
            raw = part.encode("utf-8", "surrogatepass")
            hasher.update(len(raw).to_bytes(8, "little"))
            hasher.update(raw)
    return hasher.digest()
