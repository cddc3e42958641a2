r"""The grader `published` of the task `math` beside that of the public code of arXiv 2605.24202.

    python -m tools.published_grader COPY [FILE ...] [--pairs 10000] [--seed 0]

COPY is a local copy of XHMY/marl-llm-workflows at 6eafb3c: a folder of its files or a bare git
directory. Its grader runs in another process, which needs pylatexenc 2.10 beside sympy. Both judge
the pairs of the FILEs (JSON lines with `gold` and `pred`, or with `answer`) and generated pairs;
every difference is printed, and the exit status is 1 if there is one. A pair that either grader
leaves at its deadline is counted apart.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from flowzoo.envs.readers.published import read_answer
from flowzoo.reward.math.published.statuses import published_statuses
from tools.published_readers import PublicCode

PATH = "rllm/rewards/math_utils/utils.py"
Pair = tuple[str, str]
"""An answer and its reference."""

_CHILD = """
import json, logging, signal, sys
space = {"__name__": "public"}
exec(compile(json.loads(sys.stdin.readline()), "public", "exec"), space)
logging.disable()
def stop(*_): raise KeyboardInterrupt
signal.signal(signal.SIGALRM, stop)
for line in sys.stdin:
    pair = json.loads(line)
    signal.alarm(5)
    try:
        right = any(space[f"grade_answer_{name}"](*pair) for name in ("mathd", "sympy"))
        print("equal" if right else "different", flush=True)
    except KeyboardInterrupt:
        print("timeout", flush=True)
    signal.alarm(0)
"""
_PIECES = (
    "0", "1", "2", "3", "7", "10", "12", "0.5", ".5", "2.50", "1,000", "1000", "-3", "x", "y", "n",
    "\\pi", "\\sqrt{2}", "\\sqrt3", "\\frac{1}{2}", "\\frac12", "\\dfrac{3}{4}", "\\tfrac{x}{2}",
    "3/4", "-2/6", "x^2", "x^{2}", "2^{10}", "(x+1)", "\\infty", "1\\frac{2}{3}", "90^\\circ",
    "5\\text{ cm}", "\\text{yes}", "20\\%", "\\$5", "\\ln 2", "\\log(3)", "2!", "i", "e", "\\theta",
)  # fmt: skip
_SIGNS = ("+", "-", "*", "\\cdot ", "\\times ", " ", "", "/", ", ", " \\cup ", "=", " or ")
_RESPELLINGS = (
    ("\\frac", "\\dfrac"), ("\\dfrac", "\\frac"), ("{", "{ "), (" ", ""), ("+", " + "),
    ("(", "\\left("), (")", "\\right)"), ("^{2}", "^2"), ("1000", "1,000"), ("1,000", "1{,}000"),
    ("\\sqrt{2}", "\\sqrt2"), ("0.5", "\\frac{1}{2}"), ("\\frac{1}{2}", "1/2"), ("3/4", "0.75"),
    ("\\cdot ", "*"), ("\\pi", "\\pi "), ("x", "y"), ("1", "2"), ("2", "02"), ("-", "- "),
    (",", ", "), ("\\text{ cm}", ""), ("^\\circ", ""), ("\\%", ""), ("\\$", ""), ("e", "E"),
)  # fmt: skip


def pairs_of(files: list[Path]) -> Iterator[Pair]:
    """The pairs of `files`; an answer alone is its own reference, and that of the line before."""
    for path in files:
        before = "1"
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            gold = str(row.get("gold", row.get("answer", "")))
            predictions = [row[name] for name in ("pred", "right", "wrong") if name in row]
            for answer in map(str, predictions or (gold, before)):
                boxed = read_answer(answer)
                yield (answer if boxed is None else boxed), gold
            before = gold


def generated(known: list[str], count: int, seed: int) -> Iterator[Pair]:
    """Answers, made or `known`, beside respellings of themselves, with a slip now and then."""
    rng = random.Random(seed)
    for _ in range(count):
        gold = rng.choice(known) if known and rng.random() < 0.5 else _made(rng)
        answer = gold
        for _ in range(rng.randint(0, 3)):
            old, new = rng.choice(_RESPELLINGS)
            answer = answer.replace(old, new)
        if rng.random() < 0.2:
            pieces = re.findall(r"\\[A-Za-z]+|.", answer, re.DOTALL)
            rng.shuffle(pieces)
            answer = "".join(pieces)
        yield (answer, gold) if rng.random() < 0.5 else (gold, answer)


def _made(rng: random.Random) -> str:
    parts = [rng.choice(_PIECES)]
    for _ in range(rng.randint(0, 2)):
        parts += [rng.choice(_SIGNS), rng.choice(_PIECES)]
    text = "".join(parts)
    return rng.choice(("({})", "[{})", "{}", "{}", "{}", "x={}", "\\{{{}\\}}")).format(text)


def public_statuses(copy: Path, pairs: list[Pair]) -> list[str]:
    """The statuses of `pairs` by the public grader."""
    lines = [PublicCode(copy).source(PATH), *pairs]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    command = [sys.executable, "-c", _CHILD]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout.split()


def compare(copy: Path, pairs: list[Pair]) -> int:
    """Print the differences and their number, which is returned."""
    own = published_statuses([answer for answer, _ in pairs], [gold for _, gold in pairs])
    different, late = 0, 0
    for pair, mine, public in zip(pairs, own, public_statuses(copy, pairs), strict=True):
        if "timeout" in (mine, public):
            late += 1
        elif (mine == "equal") != (public == "equal"):
            different += 1
            print(f"{pair[0]!a} for {pair[1]!a} is {mine}, published {public}")
    right = sum(status == "equal" for status in own)
    print(f"{len(pairs)} pairs, {right} equal, {late} without a verdict, {different} different")
    return different


def main() -> None:
    """Compare the graders on the command line's copy."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("copy", type=Path, help="folder or bare git directory of the public code")
    parser.add_argument("files", type=Path, nargs="*", help="JSON lines with answers")
    parser.add_argument("--pairs", type=int, default=10_000, help="number of generated pairs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the generated pairs")
    words = parser.parse_args()
    found = list(pairs_of(words.files))
    known = [gold for _, gold in found]
    made = [*generated(known, words.pairs, words.seed)]
    sys.exit(1 if compare(words.copy, list(dict.fromkeys([*found, *made]))) else 0)


if __name__ == "__main__":
    main()
