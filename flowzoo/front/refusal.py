"""Errors in OpenAI's format."""

from collections.abc import Mapping
from typing import Any, NoReturn

from flowzoo.provenance import redact


class RefusalError(Exception):
    """The error response to a request, in OpenAI's format."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """The JSON of the answer, without secrets."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": redact(error)}


class ClientGoneError(Exception):
    """The client of a request has disconnected; it gets no response."""


class BodyRoom:
    """Budget of bytes of the bodies that are being read."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0

    def take(self, count: int) -> None:
        """Reserve `count` more bytes.

        Raises:
            RefusalError: the budget is exceeded.
        """
        if self.held + count > self.most:
            message = f"Incoming requests exceed {self.most:,} bytes together: try again."
            raise RefusalError(429, "too_many_bytes", message, headers={"Retry-After": "1"})
        self.held += count


def wrong(expected: str, value: object, param: str | None) -> RefusalError:
    """Make the error for a value of the wrong type."""
    subject = f"`{param}`" if param else "The body"
    message = f"{subject} must be {expected}, got {type(value).__name__}."
    return RefusalError(400, "invalid_type", message, param)


def refuse_constant(name: str) -> NoReturn:
    """Raise `ValueError` for NaN and infinities, which Python's JSON parser accepts."""
    raise ValueError(f"{name} is not a JSON number")
