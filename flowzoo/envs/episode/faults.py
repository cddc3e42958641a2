"""Errors of scripts, and checks of the items that they yield."""

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from numbers import Real
from typing import Any, get_type_hints

from flowzoo.declared import fits
from flowzoo.envs.episode.turn import Turn
from flowzoo.envs.script import (
    CHAT_ROLES,
    RESULTS,
    Advance,
    Ask,
    Effect,
    EffectResult,
    InterimScore,
    Judge,
    Outcome,
    Reply,
    RoleScore,
    Search,
)
from flowzoo.envs.tools import Tool
from flowzoo.errors import FlowzooError, UsageError
from flowzoo.reward.unknown import unknown_reason


class WorkflowError(FlowzooError, RuntimeError):
    """A workflow's script failed or yielded an invalid item.

    Attributes:
        problem: id of the problem.
        transcript: the transcript so far, as plain dicts.
    """

    def __init__(self, message: str, problem: str = "", transcript: list[Any] | None = None):
        super().__init__(message)
        self.problem = problem
        self.transcript = transcript or []


class UngradedError(WorkflowError):
    """The verdict on an episode is unknown, so it has no score; `reason` says why."""

    def __init__(
        self, message: str, problem: str = "", transcript: list[Any] | None = None, reason: str = ""
    ):
        super().__init__(message, problem, transcript)
        self.reason = reason


def check_results(effects: Sequence[Effect], results: Sequence[EffectResult]) -> str:
    """Check that results belong to the pending effects; return why one is unknown, or ""."""
    if not effects:
        raise UsageError("no effect is pending: look at `effects` before resolving")
    if len(results) != len(effects):
        raise UsageError(f"expected {len(effects)} effect results, got {len(results)}")
    for effect, result in zip(effects, results, strict=True):
        kind = type(result)
        if kind is not RESULTS[type(effect)]:
            raise UsageError(f"{kind.__name__} is not a result of {effect!r:.200}")
    reasons = (unknown_reason(getattr(result, "status", "")) for result in results)
    return next(filter(None, reasons), "")


def foreign_reply(item: Effect | RoleScore, turns: Sequence[Turn]) -> str:
    """Say that an item is about a reply of another episode; "" if it is not."""
    of = getattr(item, "of", None)
    if not isinstance(of, Reply):
        return ""
    reply = turns[of.call].reply if of.call < len(turns) else None
    # A script may have shortened the text, for a judge.
    if (
        reply is not None
        and reply.agent == of.agent
        and (reply.text == of.text or reply.strict is of.strict)
    ):
        return ""
    return (
        f"{type(item).__name__} is about a reply of {of.agent} that this episode does not have: "
        "keep no replies between episodes"
    )


def check_note(item: RoleScore | InterimScore) -> None:
    """Check the values of a `RoleScore` or an `InterimScore`."""
    if isinstance(item, InterimScore):
        if not 0 <= item.score <= 1:
            raise TypeError(f"InterimScore takes a number in [0, 1], got {item!r:.200}")
        return
    of, value, form = item
    if type(of) is not Reply or not (0 <= value <= 1 and 0 <= (form or 0) <= 1):
        raise TypeError(f"RoleScore takes a Reply and a number in [0, 1], got {item!r:.200}")


def is_chat(seen: object) -> bool:
    """True if `seen` can be a prompt: a str, or a list or tuple of messages."""
    is_list = isinstance(seen, list | tuple)
    return isinstance(seen, str) or (is_list and all(map(is_message, seen)))


def is_message(value: object) -> bool:
    """True for a chat message."""
    if not isinstance(value, dict):
        return False
    role = value.get("role")
    return isinstance(role, str) and role in CHAT_ROLES and isinstance(value.get("content"), str)


def tools_fault(ask: Ask, roles: Sequence[str], role: str) -> str:
    """Error text for the tools of an ask; "" for valid ones."""
    if role not in roles:
        return (
            f"the script offers tools to {ask.agent}, but the workflow does not declare it: set "
            f"`tool_roles = ({role!r},)`, which adds them to its observations"
        )
    several = isinstance(ask.tools, (list, tuple))
    if not (several and all(isinstance(tool, Tool) for tool in ask.tools)):
        return f"tools of {ask.agent} must be a tuple of Tools, got {ask.tools!r:.200}"
    if len({tool.name for tool in ask.tools}) < len(ask.tools):
        return f"two tools of {ask.agent} have the same name"
    if type(ask.max_tool_calls) is not int or ask.max_tool_calls < 1:
        return f"max_tool_calls must be a whole number of at least 1, got {ask.max_tool_calls!r}"
    return ""


def score_fault(score: object) -> str:
    """Error text for an invalid score, without its name; "" for a valid one."""
    if not isinstance(score, Real):
        return f"must be a number in [0, 1], got {type(score).__name__} {score!r:.60}"
    return "" if 0 <= float(score) <= 1 else f"must be a number in [0, 1], got {score!r}"


def outcome_fault(outcome: object) -> str:
    """Error text for an invalid Outcome of `Workflow.script`; "" for a valid one."""
    if not isinstance(outcome, Outcome):
        return f"a script must return an Outcome, got {type(outcome).__name__}"
    if fault := score_fault(outcome.score):
        return f"the score of an Outcome {fault}"
    answer, _, facts, _ = outcome
    if answer is not None and not isinstance(answer, str):
        return f"the answer of an Outcome must be a str or None, got {type(answer).__name__}"
    if not isinstance(facts, Mapping):
        return f"the facts of an Outcome must be a mapping, got {type(facts).__name__}"
    for name, value in facts.items():
        if not isinstance(name, str) or not is_plain(value):
            return (
                f"the fact {name!r:.60} of an Outcome is of type {type(value).__name__}: facts are "
                "plain values by name (numbers, texts, truth values, None, and lists and dicts of "
                "them), which can be saved, copied and compared"
            )
    return ""


def is_plain(value: object) -> bool:
    """True if JSON can represent `value`; a dataclass counts as its fields."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return True
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, (str, int)) and is_plain(item) for key, item in value.items())
    if is_dataclass(value) and not isinstance(value, type):
        return all(is_plain(getattr(value, field.name)) for field in fields(value))
    return False


@cache
def field_types(effect: type) -> Mapping[str, Any]:
    """Types of the fields of an effect, as its class declares them."""
    return get_type_hints(effect)


def effect_fault(effect: Effect) -> str:
    """Error text for an invalid effect; "" for a valid one."""
    kind = type(effect)
    if kind is Advance:
        return ""  # made only by flowzoo's own workflow
    for name, declared in field_types(kind).items():
        value = getattr(effect, name)
        if not fits(value, declared):
            expected = re.sub(r"\b[\w.]+\.(?=\w)", "", inspect.formatannotation(declared))
            description = f"{type(value).__name__} {value!r:.100}"
            return f"{kind.__name__}({name}=...) takes {expected}, got {description}"
    if isinstance(effect, Search) and effect.k < 1:
        return f"Search(k=...) takes a whole number >= 1, got {effect.k!r}"
    if isinstance(effect, Judge) and not (effect.question.strip() and is_scale(effect.scale)):
        return (
            "Judge takes a question and scale=(lowest, highest), numbers of at most six digits, "
            f"got {effect.question!r:.60} and {effect.scale!r:.60}"
        )
    return ""


def is_scale(scale: object) -> bool:
    """True for two ascending numbers with few enough digits for a prompt."""
    return (
        isinstance(scale, tuple)
        and len(scale) == 2
        and all(
            type(end) in (int, float) and f"{end:g}".strip("-.0123456789") == "" for end in scale
        )
        and all(float(f"{end:g}") == end for end in scale)
        and scale[0] < scale[1]
    )
