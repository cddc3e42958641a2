"""The job of the math judge's workers: Math-Verify on one pair of short, screened answers."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from flowzoo.errors import UsageError

_ANTLR: Final = ("4.9.3", "4.11.", "4.13.2")


def check_antlr(installed: str | None) -> None:
    """Check the version of the ANTLR runtime, for which Math-Verify ships a parser or does not.

    Raises:
        UsageError: it is absent or of another version.
    """
    if installed is None or not installed.startswith(_ANTLR):
        raise UsageError(
            "Math-Verify reads formulas with antlr4-python3-runtime 4.9.3, 4.11.x or 4.13.2 only; "
            f"installed: {installed or 'none'}. "
            "Install it with: pip install antlr4-python3-runtime==4.13.2"
        )


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def setup() -> Callable[[bytes], bytes]:
    """Import and warm Math-Verify; returns the handler of `{"answer", "gold"}` to `1` or `0`.

    Raises:
        UsageError: Math-Verify cannot run here.
    """
    check_antlr(_installed("antlr4-python3-runtime"))
    logging.disable(logging.CRITICAL)
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    config = (LatexExtractionConfig(), ExprExtractionConfig())

    def read(text: str) -> list[object]:
        # No time limit of its own: that would be an alarm; the pool's deadline stands.
        typeset = text if "$" in text else f"${text}$"
        return parse(typeset, config, parsing_timeout=None)  # type: ignore[arg-type]

    def handle(job: bytes) -> bytes:
        pair = json.loads(job)
        found = verify(read(pair["gold"]), read(pair["answer"]), timeout_seconds=None)  # type: ignore[arg-type]
        return b"1" if found else b"0"

    handle(b'{"answer": "x^2 - 2 < 0", "gold": "x \\\\in (-\\\\sqrt{2}, \\\\sqrt{2})"}')
    return handle
