"""Randomness by key: every random thing is a function of named parts, never of call order.

Python's `hash` is salted per process and ids must not be combined by arithmetic (two published
trainers lost their groups that way), so keys are tuples, written unambiguously and hashed with
blake2b.
"""

import hashlib
import operator
import random

Part = str | int


def key_digest(*parts: Part) -> bytes:
    """16 bytes that identify the tuple `parts`; `("a", "bc")` and `("ab", "c")` differ."""
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        if not isinstance(part, (str, int)) and hasattr(part, "__index__"):
            part = operator.index(part)  # an integer of NumPy is the same key
        raw = str(part).encode("utf-8", "surrogatepass")
        tag = b"i" if isinstance(part, int) else b"s"
        hasher.update(tag + len(raw).to_bytes(8, "little") + raw)
    return hasher.digest()


def key_int(*parts: Part) -> int:
    """A 64-bit unsigned integer that identifies the tuple `parts`."""
    return int.from_bytes(key_digest(*parts)[:8], "little")


def key_rng(*parts: Part) -> random.Random:
    """A fresh generator whose stream is a function of `parts` alone."""
    return random.Random(key_int(*parts))


_MASK = 2**64 - 1


def nth(stream: int, number: int) -> int:
    """Element `number` of the SplitMix64 sequence of `stream`: 64 bits, far cheaper than a hash."""
    # Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    state = (stream + number * 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)
