"""The writer of replies in the format of a request's API."""

from flowzoo.envs.door.chat_writer import ChatWriter
from flowzoo.envs.door.responses_writer import ResponsesWriter
from flowzoo.envs.door.wire import ModelRequest

ReplyWriter = ChatWriter | ResponsesWriter
"""Both have the same methods."""


def reply_writer(request: ModelRequest, identity: str) -> ReplyWriter:
    """The writer for a request; `identity` is a part of ids."""
    return (ChatWriter if request.api == "chat" else ResponsesWriter)(request, identity)
