"""Settings of endpoints, and the file that gives them names.

    [fast]
    url = "https://host/v1"
    api_key_env = "FAST_KEY"
    requests_per_minute = 300

`openai:MODEL@fast` is a policy of this endpoint.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flowzoo.declared import NonNegative, Positive, check_declared
from flowzoo.errors import UsageError, unknown
from flowzoo.files import read_toml
from flowzoo.front.front import is_local
from flowzoo.permission import PERMISSION

_HEADER = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server that speaks OpenAI's chat-completions protocol.

    Raises:
        UsageError: a URL that is not http(s) or holds a password, a number out of range, or headers
            or a body that cannot be sent.
    """

    url: str
    """Base URL, up to and including the version, e.g. http://localhost:8000/v1."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the key; without it no key is sent."""
    key_header: str = "Authorization"
    """Header of the key: `Authorization: Bearer KEY`, or any other as `HEADER: KEY`."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers of every request; never keys, since they are written into this file."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request body, as the server understands them."""
    without: tuple[str, ...] = ()
    """Fields of the request body that are never sent, e.g. seed or temperature."""
    concurrency: Positive[int] = 64
    """Most requests under way at once, of each batch where several are sampled at once."""
    timeout: Positive[float] = 120.0
    """Seconds one attempt may take."""
    retries: NonNegative[int] = 9
    """Attempts after the first, over a minute or more. An overload that lets other requests through
    is no attempt."""
    requests_per_minute: NonNegative[int] = 0
    """Most requests in any minute; 0: no limit."""
    tokens_per_minute: NonNegative[int] = 0
    """Most tokens of prompts and replies in any minute; 0: no limit."""
    cache: str = ""
    """File of answers (SQLite): a request that is in it is not sent again."""

    def __post_init__(self) -> None:
        check_declared(self)
        chat_url(self.url)
        for name, value in {self.key_header: "", **self.headers}.items():
            if not (_HEADER.fullmatch(name) and value.isascii() and value.isprintable()):
                raise UsageError(
                    f"header {name!r}: a name has letters, digits and - alone, a value printable "
                    f"ASCII, got {value!r}"
                )
        try:
            json.dumps(dict(self.extra_body), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UsageError(f"`extra_body` is no JSON: {error}") from error


def read_endpoints(path: Path) -> dict[str, Endpoint]:
    """Endpoints by name, from a TOML file with a table of fields of `Endpoint` for each.

    Raises:
        DataError: the file is missing or not TOML.
        UsageError: a name or a field that cannot be used; the message names it.
    """
    endpoints: dict[str, Endpoint] = {}
    columns = {item.name for item in fields(Endpoint)}
    for name, table in read_toml(path).items():
        if not re.fullmatch(r"[\w.-]+", name, re.ASCII) or not isinstance(table, dict):
            raise UsageError(
                f"{path} must have a table of settings for every endpoint, e.g. [fast], whose name "
                f"is of letters, digits and . _ - alone; got {name!r}"
            )
        if "url" not in table:
            raise UsageError(f"endpoint {name} in {path} has no `url`")
        for key in sorted(table.keys() - columns):
            raise unknown(f"field of endpoint {name} in {path}", key, columns)
        try:
            endpoints[name] = Endpoint(**table)
        except UsageError as error:
            raise UsageError(f"endpoint {name} in {path}: {error}") from error
        check_receiver(endpoints[name].url, endpoints[name].api_key_env, str(path))
    return endpoints


def chat_url(base_url: str) -> str:
    """The chat-completions URL below `base_url`."""
    # A password or a query would end up in logs and records.
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
    if "#" in base_url:
        raise UsageError(f"no server gets what follows # in a URL, got {base_url!r}.")
    return base_url.rstrip("/") + "/chat/completions"


def check_receiver(url: str, variable: str = "OPENAI_API_KEY", file: str = "") -> None:
    """Check that the key in a variable may be sent to an address that a file may have named.

    `file`: the file of endpoints that has the address, which the command line names in its stead.

    Raises:
        UsageError: only a file names it, and it is not one of this machine.
    """
    if api_key(variable) and not is_local(urlsplit(url).netloc):
        setting, value = ("endpoints", file) if file else ("an endpoint", url)
        effect = f"{url} would be sent the key in {variable}"
        PERMISSION.check_value(setting, value, effect)


def api_key(variable: str) -> str:
    """The key in the environment variable `variable`, or an empty string."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"the key in {variable} holds characters other than printable ASCII.")
    return key
