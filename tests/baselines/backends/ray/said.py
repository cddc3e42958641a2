"""Errors as text that fits into a file."""

from collections.abc import Callable
from typing import Any

from flowzoo.errors import FlowzooError


def said(work: Callable[[], Any]) -> str:
    try:
        work()
    except FlowzooError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"
