"""Addresses of this machine."""

from __future__ import annotations

import functools
import re
from ipaddress import ip_address

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:@/?#\s]+))(?::\d*)?", re.IGNORECASE)


@functools.lru_cache(64)
def is_local(host: str) -> bool:
    """True if the header `Host` names this machine."""
    match = _HOST.fullmatch(host)
    name = (match[1] or match[2]).lower() if match else ""
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False
