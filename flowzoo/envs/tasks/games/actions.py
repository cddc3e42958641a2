"""Reading lists of actions out of replies: JSON alone, or forgivingly."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from flowzoo.envs.text import visible

MOVES = "UDLR"  # up, down, left, right, in the order the kernels number them
LONGEST_LIST = 20_000  # characters of a list that is read; a longer one is unreadable
MOST_ACTIONS = 1_000  # actions of a list that is read; a longer one is unreadable

_CANONICAL_MOVES = re.compile(r'\[(?:"[UDLR]"(?:,"[UDLR]")*)?\]')
_WORD = re.compile(r"\w+")
_WORDS = {"UP": "U", "DOWN": "D", "LEFT": "L", "RIGHT": "R"}


def last_bracketed(text: str) -> str | None:
    """The last complete `[...]` of `text`, brackets balanced; None if a later `[` stays open."""
    end = text.rfind("]")
    if end < 0 or "[" in text[end:]:
        return None
    depth = 0
    for at in range(end, max(-1, end - LONGEST_LIST), -1):
        if text[at] == "]":
            depth += 1
        elif text[at] == "[":
            depth -= 1
            if depth == 0:
                return text[at : end + 1]
    return None


def shown_list(text: str) -> str | None:
    """The list a reply ends on, as text: the one of its last fenced block, else its last."""
    reply = visible(text)
    end = reply.rfind("```")
    start = reply.rfind("```", 0, max(end, 0))
    if start >= 0:
        items = last_bracketed(reply[start:end])
        if items is not None:
            return items
    return last_bracketed(reply)


def json_list(text: str) -> list[object] | None:
    """The list that a reply ends on if it is JSON with at most `MOST_ACTIONS` items, else None."""
    # A model's text: `json.loads` alone reads it, and only a bounded part.
    items = shown_list(text)
    if items is None:
        return None
    try:
        value = json.loads(items)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) and len(value) <= MOST_ACTIONS else None


def written(actions: Sequence[object]) -> str:
    """A list of actions in canonical form: JSON without spaces."""
    return json.dumps(actions, separators=(",", ":"))


def join_lists(*lists: str) -> str:
    """Canonical lists one after the other, as one canonical list."""
    return f"[{','.join(inner for text in lists if (inner := text[1:-1]))}]"


def read_moves(text: str) -> str | None:
    """The moves of a reply in canonical form: a JSON list of "U", "D", "L", "R". Never raises."""
    actions = json_list(text)
    if actions is None or not all(type(a) is str and len(a) == 1 and a in MOVES for a in actions):
        return None
    return written(actions)


def read_moves_loosely(text: str) -> str | None:
    """The moves of the last list, or else the last line, in letters or words of either case."""
    # Quotes do not matter, and letters may stand together (`UURD`); any other word or number makes
    # the reply unreadable, and so do lists in lists.
    items = shown_list(text)
    if items is None:
        lines = visible(text)[-LONGEST_LIST:].splitlines()
        items = next((line for line in reversed(lines) if line.strip()), "").rpartition(":")[2]
        if not _WORD.search(items):
            return None
    elif "[" in items[1:]:
        return None
    moves: list[str] = []
    for match in _WORD.finditer(items):
        word = match[0].upper()
        word = _WORDS.get(word, word)
        if word.strip(MOVES):
            return None
        moves.extend(word)
    return written(moves) if len(moves) <= MOST_ACTIONS else None


def are_moves(answer: str) -> bool:
    """True if `answer` is a canonical list of moves."""
    return _CANONICAL_MOVES.fullmatch(answer) is not None


def moves_of(answer: str) -> str:
    """The letters of a canonical list of moves."""
    return answer[2:-2].replace('","', "")


def mistaken(moves: str, number: int, move: str) -> str:
    """`moves` with move `number` replaced, as a canonical list."""
    return written([*moves[:number], move, *moves[number + 1 :]])
