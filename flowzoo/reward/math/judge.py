r"""The fallback judge: open pairs, screened, go to Math-Verify in the shared worker pool.

The screen answers False for everything that a computer algebra system could chew on for ever:
nested powers, factorials, sums, integrals, limits, big exponents, long texts. What comes back True
has to pass guards, because Math-Verify drops what it does not read (`math_compare` has decided
everything of which that is known).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal

from flowzoo.reward.math.answer import read_answer
from flowzoo.reward.math.meaning import ParsedAnswer

if TYPE_CHECKING:
    from flowzoo.sandbox.pool.worker_pool import WorkerPool

JudgeStatus = Literal["equal", "different", "timeout", "crashed"]

_SETUP: Final = "flowzoo.reward.math.worker:setup"
_MAX_CHARS: Final = 400
_REMEMBERED: Final = 20_000
_HEAVY = re.compile(
    r"!|\\(?:sum|prod|int|iint|oint|lim|Gamma|gamma|binom|choose|det|infty\s*\^|zeta|partial)"
    r"|\b(?:sum|prod|integrate|limit|gamma|factorial|binom)\b|\\d?frac\s*\{?\s*d\s*\}?"
    r"|\d{16}|\^\s*\{?\s*-?\(?\s*\d{3,}|\*\*\s*\(?-?\d{3,}|__|import|lambda"
)
_POWER = re.compile(r"\^|\*\*")
_OPENING, _CLOSING = "{([", "})]"
_CELL = re.compile(r"&|\\\\")
_known: dict[tuple[str, str], JudgeStatus] = {}


def is_light(text: str) -> bool:
    """Whether a text may be given to the judge at all."""
    if len(text) > _MAX_CHARS or _HEAVY.search(text) or _is_tower(text):
        return False
    if text.count("(") + text.count("{") + text.count("[") > 80:
        return False
    return len(_CELL.findall(text)) < 64 and text.isprintable()


def _is_tower(text: str) -> bool:
    """Whether an exponent holds a power itself."""
    for match in _POWER.finditer(text):
        depth, idx = 0, match.end()
        while idx < len(text):
            char = text[idx]
            if char in _OPENING:
                depth += 1
            elif char in _CLOSING:
                depth -= 1
                if depth <= 0:
                    idx += 1
                    break
            elif depth == 0 and not (char.isalnum() or char in " -\\"):
                break
            elif char == "^" or text.startswith("**", idx):
                return True
            idx += 1
        if _POWER.match(text, idx):
            return True
    return False


def judge(pairs: Sequence[tuple[str, str]], deadline: float) -> list[JudgeStatus]:
    """Statuses of (answer, gold) pairs; verdicts and time-outs are remembered by content.

    Args:
        pairs: extracted answers with their gold answers.
        deadline: seconds for each pair.
    """
    distinct = dict.fromkeys(pairs)
    found: dict[tuple[str, str], JudgeStatus] = {
        pair: _known[pair] for pair in distinct if pair in _known
    }
    todo = [p for p in distinct if p not in found and is_light(p[0]) and is_light(p[1])]
    if todo:
        found.update(zip(todo, _ask(todo, deadline), strict=True))
        for pair in todo:
            if len(_known) >= _REMEMBERED:
                with suppress(RuntimeError, StopIteration):  # another thread was here
                    _known.pop(next(iter(_known)), None)
            _known[pair] = found[pair]
    # What the screen kept out was not asked about.
    return [found.get(pair, "different") for pair in pairs]


def _pool() -> WorkerPool:
    from flowzoo.sandbox.pool.worker_pool import shared_pool

    # Pure-Python integers: with gmpy2 a huge power aborts the interpreter.
    return shared_pool(
        _SETUP, env={"SYMPY_GROUND_TYPES": "python", "MPMATH_NOGMPY": "1"}, name="math"
    )


def warm() -> None:
    """Start the judge's processes without waiting, so that the first open pair does not pay it."""
    _pool().warm(b'{"answer": "1", "gold": "1"}')


def _ask(pairs: Sequence[tuple[str, str]], deadline: float) -> list[JudgeStatus]:
    pool = _pool()
    jobs = [json.dumps({"answer": answer, "gold": gold}).encode() for answer, gold in pairs]
    statuses: list[JudgeStatus] = []
    for (answer, gold), result in zip(pairs, pool.submit_batch(jobs, deadline), strict=True):
        if result.status == "timeout":
            statuses.append("timeout")
        elif result.status != "ok":
            statuses.append("crashed")
        else:
            is_equal = result.value == b"1" and _passes(answer, gold)
            statuses.append("equal" if is_equal else "different")
    return statuses


def _passes(answer: str, gold: str) -> bool:
    """Guards after a True: as many parts as the gold, and no relation that stands for nothing."""
    found, wanted = read_answer(answer), read_answer(gold)
    if found is None or wanted is None:
        return False
    if _parts(found) > _parts(wanted) and "text" not in (found.kind, wanted.kind):
        return False
    if _outer_commas(answer) > _outer_commas(gold) or answer.count("=") > gold.count("=") + 1:
        return False
    # Two equations without solutions have the same, empty, set of solutions.
    return not (found.relation and wanted.relation)


def _outer_commas(text: str) -> int:
    """Commas outside every bracket, which separate items."""
    depth = count = 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        count += char in ",;" and depth <= 0
    return count


def _parts(answer: ParsedAnswer) -> int:
    return len(answer.items) if answer.kind in ("list", "set") else 1
