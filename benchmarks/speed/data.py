"""The files that the bench of the math reward reads: labeled cases, GSM8K, MATH-500."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Pairs = list[tuple[str, str]]
"""(reply, gold)."""


def json_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON Lines file; empty if it is absent."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def gsm_step(data: Path, prompts: int = 128, samples: int = 16) -> Pairs:
    """A training step on GSM8K: replies of about 2,850 characters that end in a box."""
    problems, rng = json_rows(data / "gsm8k" / "test.jsonl")[:prompts], random.Random(7)
    prose = " ".join(row["answer"].partition("####")[0] for row in problems)
    rows: Pairs = []
    for row in problems:
        gold = row["answer"].rpartition("####")[2].strip()
        for _ in range(samples):
            start = rng.randrange(len(prose) - 2_900)
            answer = gold if rng.random() < 0.5 else str(rng.randrange(2_000))
            text = f"{prose[start : start + 2_820]}\nSo the answer is \\boxed{{{answer}}}."
            rows.append((text, gold))
    return rows


def respelled(gold: str, rng: random.Random) -> str:
    """The answer in another spelling, or, half the time, another answer."""
    text = gold
    if rng.random() < 0.5:
        text = re.sub(r"\d+", lambda m: str(int(m[0]) + rng.randrange(3)), text)
    changes: list[Callable[[str], str]] = [
        lambda s: s.replace("\\frac", rng.choice(("\\dfrac", "\\tfrac", "\\frac"))),
        lambda s: s.replace("(", "\\left(").replace(")", "\\right)") if "\\left" not in s else s,
        lambda s: s.replace(",", ", ") if "\\" not in s else s,
        lambda s: s.replace(" ", ""),
        lambda s: re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"\1/\2", s),
        lambda s: f" {s} ",
        lambda s: f"x = {s}" if "=" not in s else s,
    ]
    return rng.choice(changes)(text)


def math_mix(data: Path, samples: int = 4) -> Pairs:
    """Replies to MATH-500 problems, 42 % of them with golds that are no plain number."""
    problems, rng = json_rows(data / "math500" / "test.jsonl"), random.Random(7)
    plain = [row for row in problems if re.fullmatch(r"-?\d+", row["answer"])]
    rest = [row for row in problems if not re.fullmatch(r"-?\d+", row["answer"])]
    count = min(len(plain), round(len(rest) * 58 / 42))
    rows: Pairs = []
    for row in [*rest[: round(count * 42 / 58)], *plain[:count]]:
        for _ in range(samples):
            work = row["solution"].replace("\\boxed", "")
            answer = respelled(row["answer"], rng)
            rows.append((f"{work}\nThe answer is $\\boxed{{{answer}}}$.", row["answer"]))
    rng.shuffle(rows)
    return rows
