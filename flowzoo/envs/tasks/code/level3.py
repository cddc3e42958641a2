"""Level 3 of the generated code problems: programs that read stdin, and longer functions."""

from __future__ import annotations

import random
from collections.abc import Sequence

from flowzoo.envs.tasks.code.family import CodeDraft, families
from flowzoo.envs.tasks.code.level2 import WORDS, maps, tests


def sum_lines(rng: random.Random) -> CodeDraft:
    """Numbers on lines of their own."""
    (condition, test), (change, expression) = tests(rng), maps(rng)
    what, form = rng.choice((("the sum", "sum(found)"), ("the number", "len(set(found))")))
    extra = " different" if what == "the number" else ""
    return CodeDraft(
        "The first line holds n, the next n lines hold one integer each. Take those that are "
        f"{condition}, each {change}, and print {what} of{extra} results.",
        f"found = []\nfor i in range(int(input())):\n    n = int(input())\n    if {test}:\n"
        f"        found.append({expression})\nprint({form})",
        lambda rng: _lines([rng.randint(-20, 60) for _ in range(rng.randint(3, 8))]),
        None,
    )


def _lines(items: Sequence[object]) -> str:
    """An input whose first line says how many lines follow."""
    return "".join(f"{item}\n" for item in (len(items), *items))


def table(rng: random.Random) -> CodeDraft:
    """Rows of a name and a number."""
    k, bonus = rng.randint(20, 70), rng.randint(1, 9)
    order, key = rng.choice(
        (
            ("from the most points to the fewest, equal ones alphabetically", "(-row[1], row[0])"),
            ("alphabetically", "row[0]"),
        )
    )
    letter = rng.choice("apl")
    return CodeDraft(
        "The first line holds n, the next n lines a name and its points. Names with the letter "
        f"{letter} get {bonus} more. Print one line `name points` for each that then has at least "
        f"{k} points, {order}; if there is none, print `nobody`.",
        "rows = []\nfor i in range(int(input())):\n    name, points = input().split()\n"
        f"    points = int(points)\n    if {letter!r} in name:\n        points += {bonus}\n"
        f"    if points >= {k}:\n        rows.append((name, points))\n"
        f"for name, points in sorted(rows, key=lambda row: {key}):\n    print(name, points)\n"
        "if len(rows) == 0:\n    print('nobody')",
        _table,
        None,
    )


def _table(rng: random.Random) -> str:
    names = rng.sample(WORDS, rng.randint(2, 6))
    return _lines([f"{name} {rng.randint(5, 95)}" for name in names])


def commands(rng: random.Random) -> CodeDraft:
    """A small machine with a number."""
    start, factor, m = rng.randint(0, 20), rng.randint(2, 5), rng.randint(50, 200)
    return CodeDraft(
        f"A machine holds a number, {start} at the start. The first line holds n, the next n lines "
        f"a command each: `add k`, `sub k`, or `grow k` (k times: multiply by {factor}). After "
        f"every command the number is reduced modulo {m}. Print the number at the end.",
        f"value = {start}\nfor i in range(int(input())):\n    word, k = input().split()\n"
        "    k = int(k)\n    if word == 'add':\n        value = value + k\n"
        "    elif word == 'sub':\n        value = value - k\n    else:\n"
        f"        for j in range(k):\n            value = value * {factor}\n"
        f"    value = value % {m}\nprint(value)",
        _commands,
        None,
    )


def _commands(rng: random.Random) -> str:
    words = ("add", "sub", "grow")
    return _lines([f"{rng.choice(words)} {rng.randint(1, 9)}" for _ in range(rng.randint(2, 7))])


def grid(rng: random.Random) -> CodeDraft:
    """Marks in a grid."""
    mark, k = rng.choice("#*x"), rng.randint(1, 3)
    columns = "[[row[j] for row in rows] for j in range(len(rows[0]))]"
    what, form = rng.choice((("rows", "rows"), ("columns", columns)))
    return CodeDraft(
        f"The first line holds n, the next n lines are the rows of a grid of `{mark}` and `.`. "
        f"Print how many {what} have more than {k} `{mark}`, and on a second line how many "
        f"`{mark}` there are in all.",
        "rows = [input() for i in range(int(input()))]\n"
        f"print(len([1 for part in {form} if list(part).count({mark!r}) > {k}]))\n"
        f"print(sum([row.count({mark!r}) for row in rows]))",
        lambda rng: _grid(rng, mark),
        None,
    )


def _grid(rng: random.Random, mark: str) -> str:
    height, width = rng.randint(2, 6), rng.randint(3, 8)
    return _lines(["".join(rng.choice((mark, ".")) for _ in range(width)) for _ in range(height)])


def sentences(rng: random.Random) -> CodeDraft:
    """Words of lines."""
    k, letter = rng.randint(3, 6), rng.choice("aeilnpr")
    words, form = rng.choice(
        (
            ("in reverse order", "kept[::-1]"),
            ("in alphabetical order", "sorted(kept)"),
            ("in capitals", "[w.upper() for w in kept]"),
        )
    )
    return CodeDraft(
        "The first line holds n, the next n lines hold words. For each of these lines print its "
        f"words of at most {k} letters and those with the letter {letter}, {words}, separated by "
        "one space, or `-` if there are none.",
        "for i in range(int(input())):\n"
        f"    kept = [w for w in input().split() if len(w) <= {k} or {letter!r} in w]\n"
        f"    if kept:\n        print(' '.join({form}))\n    else:\n        print('-')",
        _sentences,
        None,
    )


def _sentences(rng: random.Random) -> str:
    return _lines(
        [" ".join(rng.sample(WORDS, rng.randint(1, 6))) for _ in range(rng.randint(1, 4))]
    )


def depth(rng: random.Random) -> CodeDraft:
    """Depth of brackets, or -1."""
    opening, closing = rng.choice(("()", "[]", "<>", "{}"))
    plus = rng.randint(1, 5)
    return CodeDraft(
        f"Write depth(text): {plus} for each level of the deepest nesting of {opening} and "
        f"{closing} in the text, or -1 if they do not match. Other characters do not count.",
        "def depth(text):\n    level = 0\n    deepest = 0\n    for c in text:\n"
        f"        if c == {opening!r}:\n            level += 1\n"
        f"            deepest = max(deepest, level)\n        elif c == {closing!r}:\n"
        "            level -= 1\n            if level < 0:\n                return -1\n"
        f"    if level != 0:\n        return -1\n    return deepest * {plus}",
        lambda rng: (_brackets(rng, opening, closing),),
        "depth",
    )


def _brackets(rng: random.Random, opening: str, closing: str) -> str:
    text, level = "", 0
    for _ in range(rng.randint(1, 7)):
        if level and rng.random() < 0.45:
            text, level = text + closing, level - 1
        else:
            text, level = text + opening + rng.choice(("", "a")), level + 1
    text += closing * level
    return text if rng.random() < 0.7 else text.replace(closing, "", 1) + rng.choice(("", opening))


def merge(rng: random.Random) -> CodeDraft:
    """Merge intervals."""
    gap = rng.randint(0, 4)
    near = f"overlap or are at most {gap} apart" if gap else "touch or overlap"
    what, form = rng.choice(
        (
            ("the list of merged intervals", "merged"),
            ("the total length of the merged intervals", "sum([p[1] - p[0] for p in merged])"),
            ("how many intervals are left", "len(merged)"),
        )
    )
    return CodeDraft(
        "Write merge(intervals): the intervals are lists [start, end]. Merge those that "
        f"{near}, in the order of their starts, and return {what}.",
        "def merge(intervals):\n    merged = []\n    for start, end in sorted(intervals):\n"
        f"        if merged and start - merged[-1][1] <= {gap}:\n"
        "            merged[-1][1] = max(merged[-1][1], end)\n        else:\n"
        f"            merged.append([start, end])\n    return {form}",
        _intervals,
        "merge",
    )


def _intervals(rng: random.Random) -> tuple[list[list[int]]]:
    starts = [rng.randint(0, 40) for _ in range(rng.randint(2, 6))]
    return ([[start, start + rng.randint(1, 8)] for start in starts],)


def reverse_polish(rng: random.Random) -> CodeDraft:
    """A stack machine."""
    m = rng.randint(20, 99)
    word, form = rng.choice((("max", "max(a, b)"), ("min", "min(a, b)")))
    return CodeDraft(
        "Write polish(text): evaluate an expression in reverse Polish notation with integers, +, "
        f"- and * and `{word}` of two numbers, separated by spaces; every result is reduced "
        f"modulo {m}.",
        "def polish(text):\n    stack = []\n    for item in text.split():\n"
        "        if item.isdigit():\n            stack.append(int(item))\n        else:\n"
        "            b = stack.pop()\n            a = stack.pop()\n"
        "            if item == '+':\n                value = a + b\n"
        "            elif item == '-':\n                value = a - b\n"
        "            elif item == '*':\n                value = a * b\n"
        f"            else:\n                value = {form}\n"
        f"            stack.append(value % {m})\n    return stack[0]",
        lambda rng: (_polish(rng, ("+", "-", "*", word), rng.randint(1, 3)),),
        "polish",
    )


def _polish(rng: random.Random, operators: tuple[str, ...], nesting: int) -> str:
    if nesting == 0 or (nesting < 3 and rng.random() < 0.3):
        return str(rng.randint(0, 19))
    parts = [_polish(rng, operators, nesting - 1) for _ in range(2)]
    return " ".join((*parts, rng.choice(operators)))


def matrix(rng: random.Random) -> CodeDraft:
    """A sum over part of a square."""
    plus, (condition, test) = rng.randint(0, 9), tests(rng)
    where, form = rng.choice(
        (
            ("on the main diagonal", "i == j"),
            ("above the main diagonal", "i < j"),
            ("below the main diagonal", "i > j"),
            ("in the first or the last row", "i == 0 or i == len(rows) - 1"),
        )
    )
    return CodeDraft(
        f"Write total(rows): the rows of a square of numbers are given. Return the sum of the "
        f"numbers {where} that are {condition}" + (f", plus {plus}." if plus else "."),
        "def total(rows):\n    found = 0\n    for i in range(len(rows)):\n"
        f"        for j in range(len(rows)):\n            n = rows[i][j]\n"
        f"            if ({form}) and ({test}):\n                found += n\n"
        f"    return found" + (f" + {plus}" if plus else ""),
        _square,
        "total",
    )


def _square(rng: random.Random) -> tuple[list[list[int]]]:
    size = rng.randint(2, 4)
    return ([[rng.randint(-9, 40) for _ in range(size)] for _ in range(size)],)


def change_coins(rng: random.Random) -> CodeDraft:
    """Fewest coins, by dynamic programming."""
    small, large = rng.randint(2, 5), rng.randint(6, 11)
    return CodeDraft(
        f"Write coins(amount): the smallest number of coins of value 1, {small} and {large} that "
        "make up the amount.",
        "def coins(amount):\n    best = [0]\n    for total in range(1, amount + 1):\n"
        f"        found = best[total - 1]\n        for coin in ({small}, {large}):\n"
        "            if coin <= total:\n"
        "                found = min(found, best[total - coin])\n"
        "        best.append(found + 1)\n    return best[amount]",
        lambda rng: (rng.randint(0, 60),),
        "coins",
    )


LEVEL_3 = families(
    3, sum_lines, table, commands, grid, sentences, depth, merge, reverse_polish, matrix,
    change_coins,
)  # fmt: skip
