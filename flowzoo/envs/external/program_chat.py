"""Conversion of program requests to asks and of replies to program replies."""

from __future__ import annotations

import json
from typing import Any

from flowzoo.envs.script import NO_COUNTS, Ask, ProgramReply, ProgramRequest, Reply
from flowzoo.envs.tools import before_calls


def asked(agent: str, request: ProgramRequest) -> Ask:
    """Convert a request to an ask."""
    messages: list[dict[str, Any]] = []
    for sender, content, *more in request.messages:
        calls = json.loads(more[0]) if more else {}
        messages.append({"role": sender, "content": content, **calls})
    return Ask(agent, messages, tools=request.tools, max_tool_calls=request.most_calls)


def program_reply(reply: Reply) -> ProgramReply:
    """Convert a reply to a program's format; unreadable calls stay text."""
    counts, calls = reply.counts or NO_COUNTS, reply.tool_calls
    return ProgramReply(before_calls(reply.text) if calls else reply.text, counts, calls)
