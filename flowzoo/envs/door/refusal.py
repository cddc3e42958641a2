"""Errors in OpenAI's format."""

from __future__ import annotations

from typing import Any


class RefusalError(Exception):
    """A request that is answered with an error in OpenAI's format."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    def body(self) -> dict[str, Any]:
        """The JSON of the answer."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


class BodyRoom:
    """Bytes of bodies that may be held while they are read."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0

    def take(self, count: int) -> None:
        """Hold `count` more bytes.

        Raises:
            RefusalError: there is no room for them.
        """
        if self.held + count > self.most:
            message = f"Requests that are coming in have {self.most:,} bytes together: try again."
            raise RefusalError(429, "too_many_bytes", message)
        self.held += count


def wrong(expected: str, value: Any, param: str | None) -> RefusalError:
    """The refusal of a value of another type."""
    subject = f"`{param}`" if param else "The body"
    message = f"{subject} must be {expected}, got {type(value).__name__}."
    return RefusalError(400, "invalid_type", message, param)


def refuse_constant(name: str) -> Any:
    """Raise `ValueError` for NaN and infinities, which Python's reader takes for JSON."""
    raise ValueError(f"{name} is no number of JSON")
