"""Digests of the requests and replies of an agent program, by which its runs are found."""

from __future__ import annotations

from flowzoo.envs.script import Exchange, Progress
from flowzoo.seeding import key_digest


def spot_digest(key: bytes, progress: Progress) -> bytes:
    """Digest of a program's requests after the course that `key` identifies."""
    return key_digest(key.hex(), repr(progress.requests))


def course_digest(spot: bytes, exchange: Exchange) -> bytes:
    """Digest of a course that goes on from `spot` with an exchange."""
    return key_digest(spot.hex(), repr(exchange))
