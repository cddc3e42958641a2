"""Digests of an agent program's requests and replies, the keys of its parked runs."""

from __future__ import annotations

from flowzoo.envs.script import Exchange, Progress
from flowzoo.seeding import key_digest


def spot_digest(key: bytes, progress: Progress) -> bytes:
    """Digest of a program's requests after the course that `key` identifies."""
    return key_digest(key.hex(), repr(progress.requests))


def course_digest(spot: bytes, exchange: Exchange) -> bytes:
    """Digest of the course after one more exchange at `spot`."""
    return key_digest(spot.hex(), repr(exchange))
