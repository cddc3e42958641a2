"""An OpenAI-compatible endpoint: address, key, statistics and errors."""

from __future__ import annotations

import email.utils
import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from flowzoo.errors import FlowzooError, UsageError, missing_extra


class EndpointError(FlowzooError, RuntimeError):
    """An endpoint failed for good: the message names URL, status and the server's text."""


@dataclass(slots=True)
class EndpointStats:
    """Statistics of an endpoint; token counts as the server reports them."""

    requests: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    filtered: int = 0
    """Replies that the server cut for their content."""
    shortened: int = 0
    """Prompts that were shortened because the server refused their length."""


def retry_after(header: str | None, now: float) -> float:
    """Seconds a `Retry-After` header asks to wait (a number or an HTTP date); 0 if it says nothing.

    `now` is the time in seconds since the epoch.
    """
    if header is None:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - now
        except ValueError:
            return 0.0
    return seconds if 0.0 < seconds < float("inf") else 0.0


def chat_url(base_url: str) -> str:
    """The chat-completions URL below `base_url`.

    Raises:
        UsageError: not an http(s) URL, or one that holds a password or a query, which would end
            up in logs and records.
    """
    try:
        parts = urlsplit(base_url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of urlsplit, and of a port that is no number
        parts, valid = urlsplit(""), False
    if not valid:
        raise UsageError(
            f"expected an endpoint URL such as http://localhost:8000/v1, got {base_url!r}."
        )
    if parts.username or parts.password or parts.query:
        raise UsageError(
            "the endpoint URL must hold no user, password or query (they would be recorded); "
            "put the key into the environment variable named by api_key_env."
        )
    return base_url.rstrip("/") + "/chat/completions"


def api_key(variable: str) -> str:
    """The key in the environment variable `variable`, or an empty string.

    Raises:
        UsageError: the key holds characters that no HTTP header can.
    """
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"the key in {variable} holds characters other than printable ASCII.")
    return key


def import_httpx() -> Any:
    """The module `httpx`.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import httpx
    except ImportError as error:
        raise missing_extra("httpx", "openai", "the endpoint policy") from error
    return httpx
