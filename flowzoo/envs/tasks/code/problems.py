"""Generated code problems: 26 families in three levels, tens of thousands of statements.

1. one expression in one variable, for very small models
2. functions over numbers, lists, strings and dicts
3. programs that read stdin, and longer functions
"""

import operator
import random
from collections.abc import Callable, Iterable

from flowzoo.envs.tasks.code.family import PUBLIC, CodeDraft, Draft
from flowzoo.errors import unknown

LOW, HIGH = 2, 19  # range of constants

PHRASES = {
    "+": "add {}",
    "-": "subtract {}",
    "*": "multiply by {}",
    "//": "floor-divide by {}",
    "%": "reduce modulo {}",
    "from": "subtract it from {}",
}
_SUMS = ("+", "-", "from")
# The operations and their order.
PAIRS = (
    *(
        (first, second)
        for first in PHRASES
        for second in PHRASES
        # Two operations of one kind would often equal a single one.
        if first != second and not (first in _SUMS and second in _SUMS)
    ),
    ("+", "from"),
    ("*", "*"),
    ("//", "//"),
    ("from", "-"),
)

_RANGES = ((10, 99), (100, 400), (-400, -41), (400, 999), (0, 99), (-40, -1))
_MEANING: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "from": lambda x, constant: constant - x,
}


def operation(name: str, inner: str, constant: int) -> str:
    return f"{constant} - ({inner})" if name == "from" else f"({inner}) {name} {constant}"


def is_constant(first: str, a: int, second: str, b: int) -> bool:
    """True if the two operations give (nearly) the same number for every x."""
    if (first, second) == ("%", "//"):
        return 2 * b > a
    return (first, second) == ("*", "%") and a % b == 0


def inputs(value: Callable[[int], int]) -> Callable[[random.Random], tuple[int]]:
    """Draws small numbers for the examples, then hidden inputs."""
    drawn = 0
    waiting: list[int] = []

    def draw(rng: random.Random) -> tuple[int]:
        nonlocal drawn
        drawn += 1
        if drawn in (PUBLIC + 1, PUBLIC + 3):
            x = rng.randint(-40, 40)
            while value(x) == value(x + 1):
                x += 1
            waiting.extend((x + 1, x))
        if waiting:
            return (waiting.pop(),)
        low, high = (0, 20) if drawn <= PUBLIC else _RANGES[drawn % len(_RANGES)]
        return (rng.randint(low, high),)

    return draw


def two_operations(rng: random.Random) -> CodeDraft:
    """Two operations with their constants, and inputs from small to large."""
    first, second = rng.choice(PAIRS)
    a = b = 0
    while not a or is_constant(first, a, second, b):
        a, b = rng.randint(LOW, HIGH), rng.randint(LOW, HIGH)
    steps = PHRASES[first].format(a), PHRASES[second].format(b)
    expression = operation(second, operation(first, "x", a), b)

    def value(x: int) -> int:
        return _MEANING[second](_MEANING[first](x, a), b)

    return CodeDraft(
        f"Write f(x): take x, {steps[0]}, then {steps[1]}.",
        f"def f(x):\n    return {expression}",
        inputs(value),
    )


WORDS = (
    "apple", "pear", "plum", "fig", "grape", "lemon", "melon", "cherry", "peach", "mango",
    "kiwi", "lime", "berry", "olive", "date", "quince", "apricot", "banana", "papaya", "guava",
)  # fmt: skip

Draw = Callable[[random.Random], tuple[object, ...]]


def numbers(low: int = -20, high: int = 60, least: int = 3, most: int = 9) -> Draw:
    return lambda rng: ([rng.randint(low, high) for _ in range(rng.randint(least, most))],)


def some_words(least: int = 2, most: int = 7) -> Draw:
    return lambda rng: ([rng.choice(WORDS[:12]) for _ in range(rng.randint(least, most))],)


def a_number(low: int, high: int) -> Draw:
    return lambda rng: (rng.randint(low, high),)


def tests(rng: random.Random) -> tuple[str, str]:
    """A condition on a number: in words, and as an expression in n."""
    k = rng.randint(2, 12)
    rest = rng.randrange(k)
    return rng.choice(
        (
            (f"greater than {k}", f"n > {k}"),
            (f"at most {3 * k}", f"n <= {3 * k}"),
            (f"divisible by {k}", f"n % {k} == 0"),
            (f"not divisible by {k}", f"n % {k} != 0"),
            (f"of remainder {rest} modulo {k}", f"n % {k} == {rest}"),
            (f"between {k} and {4 * k} (both included)", f"n >= {k} and n <= {4 * k}"),
        )
    )


def maps(rng: random.Random) -> tuple[str, str]:
    """A function of a number: in words, and as an expression in n."""
    k = rng.randint(2, 12)
    return rng.choice(
        (
            (f"plus {k}", f"n + {k}"),
            (f"times {k}", f"n * {k}"),
            (f"modulo {k}", f"n % {k}"),
            ("squared", "n * n"),
            (f"subtracted from {5 * k}", f"{5 * k} - n"),
            (f"divided by {k} and rounded down", f"n // {k}"),
        )
    )


def list_pipeline(rng: random.Random) -> CodeDraft:
    (condition, test), (change, expression) = tests(rng), maps(rng)
    what, form = rng.choice(
        (
            ("their sum", "sum({})"),
            ("the list of them", "{}"),
            ("the list of them in ascending order", "sorted({})"),
            ("the largest of them, or 0 if there are none", "max({} + [0])"),
            ("the list of them in reverse order", "{}[::-1]"),
        )
    )
    if "largest" in what:  # 0 means none, so values must not be negative
        change, expression = "squared", "n * n"
    inner = f"[{expression} for n in numbers if {test}]"
    return CodeDraft(
        f"Write pick(numbers): take the numbers that are {condition}, each {change}, and return "
        f"{what}.",
        f"def pick(numbers):\n    return {form.format(inner)}",
        numbers(),
    )


def list_window(rng: random.Random) -> CodeDraft:
    k, (word, name) = rng.randint(2, 5), rng.choice((("largest", "max"), ("smallest", "min")))
    drop = rng.randint(1, 9)
    return CodeDraft(
        f"Write window(numbers): the {word} sum of {k} neighbouring numbers, minus {drop}. The "
        f"list has at least {k} numbers.",
        f"def window(numbers):\n    best = sum(numbers[:{k}])\n"
        f"    for i in range(len(numbers) - {k} + 1):\n"
        f"        best = {name}(best, sum(numbers[i:i + {k}]))\n    return best - {drop}",
        numbers(least=k, most=k + 6),
    )


def list_rotate(rng: random.Random) -> CodeDraft:
    k, m = rng.randint(1, 6), rng.randint(2, 9)
    return CodeDraft(
        f"Write turn(numbers): rotate the list {k} places to the left and multiply every number "
        f"by {m}. The list is not empty.",
        f"def turn(numbers):\n    k = {k} % len(numbers)\n"
        f"    return [n * {m} for n in numbers[k:] + numbers[:k]]",
        numbers(least=2),
    )


def list_runs(rng: random.Random) -> CodeDraft:
    condition, test = tests(rng)
    plus = rng.randint(0, 3)
    return CodeDraft(
        "Write streak(numbers): the length of the longest run of neighbouring numbers that are all "
        f"{condition}" + (f", plus {plus}." if plus else "."),
        "def streak(numbers):\n    best = 0\n    run = 0\n    for n in numbers:\n"
        f"        if {test}:\n            run += 1\n            best = max(best, run)\n"
        f"        else:\n            run = 0\n    return best" + (f" + {plus}" if plus else ""),
        numbers(least=5, most=14),
    )


def pairs_apart(rng: random.Random) -> CodeDraft:
    k = rng.randint(2, 12)
    wording, test = rng.choice(
        (
            (f"differ by exactly {k}", f"abs(numbers[i] - numbers[j]) == {k}"),
            (f"add up to a multiple of {k}", f"(numbers[i] + numbers[j]) % {k} == 0"),
            (f"add up to more than {3 * k}", f"numbers[i] + numbers[j] > {3 * k}"),
        )
    )
    return CodeDraft(
        f"Write pairs(numbers): how many pairs of different positions hold numbers that {wording}.",
        "def pairs(numbers):\n    count = 0\n    for i in range(len(numbers)):\n"
        f"        for j in range(i + 1, len(numbers)):\n            if {test}:\n"
        "                count += 1\n    return count",
        numbers(0, 24, 4, 9),
    )


def digit_sum(rng: random.Random) -> CodeDraft:
    change, expression = rng.choice(
        [(f"{k} times n", f"n * {k}") for k in range(2, 20)]
        + [(f"n plus {k}", f"n + {k}") for k in range(11, 60)]
    )
    what, step = rng.choice(
        (
            ("the sum of the digits", "total += n % 10"),
            ("the sum of the squared digits", "total += n % 10 * (n % 10)"),
            ("how many digits are greater than 4", "total += 1 if n % 10 > 4 else 0"),
        )
    )
    return CodeDraft(
        f"Write digits(n): {what} of {change}. n is not negative.",
        f"def digits(n):\n    n = {expression}\n    total = 0\n    while n > 0:\n        {step}\n"
        "        n = n // 10\n    return total",
        a_number(0, 9_999),
    )


def recurrence(rng: random.Random) -> CodeDraft:
    start, p, q, m = rng.randint(1, 9), rng.randint(2, 9), rng.randint(1, 20), rng.randint(50, 999)
    return CodeDraft(
        f"A sequence starts with {start}; the next number is always {p} times the number plus {q}, "
        f"modulo {m}. Write term(n): its number n, counted from 0.",
        f"def term(n):\n    value = {start}\n    for i in range(n):\n"
        f"        value = (value * {p} + {q}) % {m}\n    return value",
        a_number(0, 30),
    )


def count_numbers(rng: random.Random) -> CodeDraft:
    a, b = rng.sample(range(2, 14), 2)
    joint, form = rng.choice(
        (
            (f"divisible by {a} but not by {b}", f"i % {a} == 0 and i % {b} != 0"),
            (f"divisible by {a} or by {b}", f"i % {a} == 0 or i % {b} == 0"),
            (f"divisible by {a} or end in {b % 10}", f"i % {a} == 0 or i % 10 == {b % 10}"),
        )
    )
    return CodeDraft(
        f"Write count(n): how many of the numbers from 1 to n (both included) are {joint}.",
        f"def count(n):\n    return len([i for i in range(1, n + 1) if {form}])",
        a_number(1, 120),
    )


def letter_count(rng: random.Random) -> CodeDraft:
    chosen = "".join(sorted(rng.sample("aeilnoprstu", rng.randint(2, 4))))
    weight = rng.randint(2, 9)
    return CodeDraft(
        f"Write value(text): each of the letters {', '.join(chosen)} is worth {weight} points and "
        "any other letter 1 point. Return the points of the text.",
        "def value(text):\n    points = 0\n    for letter in text:\n"
        f"        if letter in {chosen!r}:\n            points += {weight}\n        else:\n"
        "            points += 1\n    return points",
        lambda rng: ("".join(rng.sample(WORDS, rng.randint(1, 3))),),
    )


def rewrite(rng: random.Random) -> CodeDraft:
    old, new = rng.sample("aeilnoprst", 2)
    wording, form = rng.choice(
        (
            ("turn the text around", "{}[::-1]"),
            ("write it in capitals", "{}.upper()"),
            ("drop the first letter", "{}[1:]"),
            ("keep every second letter, the first one included", "{}[::2]"),
        )
    )
    return CodeDraft(
        f"Write change(text): replace every {old} with {new}, then {wording}.",
        f"def change(text):\n    return {form.format(f'text.replace({old!r}, {new!r})')}",
        lambda rng: (" ".join(rng.sample(WORDS, rng.randint(1, 3))),),
    )


def shift_letters(rng: random.Random) -> CodeDraft:
    k = rng.randint(1, 25)
    skip = rng.choice("aeiou")
    return CodeDraft(
        f"Write shift(text): replace every small letter with the one {k} places later in the "
        f"alphabet (after z comes a); the letter {skip} and all other characters stay.",
        "def shift(text):\n    result = ''\n    for c in text:\n"
        f"        if c.islower() and c != {skip!r}:\n"
        f"            result += chr((ord(c) - 97 + {k}) % 26 + 97)\n        else:\n"
        "            result += c\n    return result",
        lambda rng: (rng.choice((" ", "-", "3 ")).join(rng.sample(WORDS, rng.randint(1, 3))),),
    )


def sort_words(rng: random.Random) -> CodeDraft:
    k, most = rng.randint(2, 5), rng.randint(1, 4)
    order, key = rng.choice(
        (
            ("by length, equal lengths alphabetically", "(len(w), w)"),
            ("by length from long to short, equal lengths alphabetically", "(-len(w), w)"),
            ("by their last letter, equal ones alphabetically", "(w[-1], w)"),
            ("by their second letter, equal ones alphabetically", "(w[1], w)"),
        )
    )
    first = f" and keep the first {most}" if most > 1 else ""
    return CodeDraft(
        f"Write order(words): sort the words that have at least {k} letters {order}{first}.",
        f"def order(words):\n    kept = [w for w in words if len(w) >= {k}]\n"
        f"    return sorted(kept, key=lambda w: {key})" + (f"[:{most}]" if first else ""),
        lambda rng: (rng.sample(WORDS, rng.randint(3, 8)),),
    )


def count_words(rng: random.Random) -> CodeDraft:
    k, least, letter = rng.randint(3, 6), rng.randint(1, 2), rng.choice("aeilmnpr")
    return CodeDraft(
        f"Write counts(words): a dict from word to the number of times it occurs in the list, for "
        f"the words of at least {k} letters with the letter {letter} that occur at least {least} "
        f"time{'s' if least > 1 else ''}.",
        "def counts(words):\n    found = {}\n    for word in words:\n"
        f"        if len(word) >= {k} and {letter!r} in word:\n"
        "            found[word] = found.get(word, 0) + 1\n"
        f"    return {{word: n for word, n in found.items() if n >= {least}}}",
        some_words(4, 12),
    )


def stock_value(rng: random.Random) -> CodeDraft:
    k, price = rng.randint(2, 9), rng.randint(1, 6)
    return CodeDraft(
        "Write worth(stock, prices): the value of a stock, given as dicts from name to amount and "
        f"from name to price. Names with an amount below {k} do not count; a name without a price "
        f"costs {price}.",
        "def worth(stock, prices):\n    total = 0\n    for name, amount in stock.items():\n"
        f"        if amount >= {k}:\n"
        f"            total += amount * prices.get(name, {price})\n    return total",
        lambda rng: (
            {name: rng.randint(0, 15) for name in rng.sample(WORDS, rng.randint(2, 5))},
            {name: rng.randint(7, 20) for name in rng.sample(WORDS, rng.randint(8, 14))},
        ),
    )


def parse_pairs(rng: random.Random) -> CodeDraft:
    separator, mark = rng.sample(";,|/", 1)[0], rng.choice("=:")
    condition, test = tests(rng)
    return CodeDraft(
        f"Write read(text): the text holds items such as fig{mark}12, separated by "
        f"{separator!r}. Return the sum of the numbers that are {condition}.",
        f"def read(text):\n    total = 0\n    for item in text.split({separator!r}):\n"
        f"        n = int(item.split({mark!r})[1])\n        if {test}:\n            total += n\n"
        "    return total",
        lambda rng: (
            separator.join(
                f"{name}{mark}{rng.randint(0, 60)}" for name in rng.sample(WORDS, rng.randint(2, 6))
            ),
        ),
    )


def sum_lines(rng: random.Random) -> CodeDraft:
    (condition, test), (change, expression) = tests(rng), maps(rng)
    what, form = rng.choice((("the sum", "sum(found)"), ("the number", "len(set(found))")))
    extra = " different" if what == "the number" else ""
    return CodeDraft(
        "The first line holds n, the next n lines hold one integer each. Take those that are "
        f"{condition}, each {change}, and print {what} of{extra} results.",
        f"found = []\nfor i in range(int(input())):\n    n = int(input())\n    if {test}:\n"
        f"        found.append({expression})\nprint({form})",
        lambda rng: _lines(rng.randint(-20, 60) for _ in range(rng.randint(3, 8))),
    )


def _lines(items: Iterable[object]) -> str:
    lines = [*items]
    return "".join(f"{line}\n" for line in (len(lines), *lines))


def table(rng: random.Random) -> CodeDraft:
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
        lambda rng: _lines(
            f"{name} {rng.randint(5, 95)}" for name in rng.sample(WORDS, rng.randint(2, 6))
        ),
    )


def commands(rng: random.Random) -> CodeDraft:
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
        lambda rng: _lines(
            f"{rng.choice(('add', 'sub', 'grow'))} {rng.randint(1, 9)}"
            for _ in range(rng.randint(2, 7))
        ),
    )


def grid(rng: random.Random) -> CodeDraft:
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
    )


def _grid(rng: random.Random, mark: str) -> str:
    height, width = rng.randint(2, 6), rng.randint(3, 8)
    return _lines(["".join(rng.choice((mark, ".")) for _ in range(width)) for _ in range(height)])


def sentences(rng: random.Random) -> CodeDraft:
    k, letter = rng.randint(3, 6), rng.choice("aeilnpr")
    wording, form = rng.choice(
        (
            ("in reverse order", "kept[::-1]"),
            ("in alphabetical order", "sorted(kept)"),
            ("in capitals", "[w.upper() for w in kept]"),
        )
    )
    return CodeDraft(
        "The first line holds n, the next n lines hold words. For each of these lines print its "
        f"words of at most {k} letters and those with the letter {letter}, {wording}, separated by "
        "one space, or `-` if there are none.",
        "for i in range(int(input())):\n"
        f"    kept = [w for w in input().split() if len(w) <= {k} or {letter!r} in w]\n"
        f"    if kept:\n        print(' '.join({form}))\n    else:\n        print('-')",
        lambda rng: _lines(
            " ".join(rng.sample(WORDS, rng.randint(1, 6))) for _ in range(rng.randint(1, 4))
        ),
    )


def depth(rng: random.Random) -> CodeDraft:
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
        lambda rng: (
            [
                [start, start + rng.randint(1, 8)]
                for start in [rng.randint(0, 40) for _ in range(rng.randint(2, 6))]
            ],
        ),
    )


def reverse_polish(rng: random.Random) -> CodeDraft:
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
    )


def _polish(rng: random.Random, operators: tuple[str, ...], nesting: int) -> str:
    if nesting == 0 or (nesting < 3 and rng.random() < 0.3):
        return str(rng.randint(0, 19))
    parts = [_polish(rng, operators, nesting - 1) for _ in range(2)]
    return " ".join((*parts, rng.choice(operators)))


def matrix(rng: random.Random) -> CodeDraft:
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
    )


def _square(rng: random.Random) -> tuple[list[list[int]]]:
    size = rng.randint(2, 4)
    return ([[rng.randint(-9, 40) for _ in range(size)] for _ in range(size)],)


def change_coins(rng: random.Random) -> CodeDraft:
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
    )


_DRAFTS: dict[int, tuple[Draft, ...]] = {
    1: (two_operations,),
    2: (
        list_pipeline, list_window, list_rotate, list_runs, pairs_apart, digit_sum, recurrence,
        count_numbers, letter_count, rewrite, shift_letters, sort_words, count_words, stock_value,
        parse_pairs,
    ),
    3: (
        sum_lines, table, commands, grid, sentences, depth, merge, reverse_polish, matrix,
        change_coins,
    ),
}  # fmt: skip
LEVELS: dict[int, dict[str, Draft]] = {
    level: {draft.__name__.replace("_", " "): draft for draft in drafts}
    for level, drafts in _DRAFTS.items()
}
"""Families by level and name; each is a function that drafts a problem."""


def level_of(family: str) -> int:
    """The level of the family of that name."""
    for level, drafts in LEVELS.items():
        if family in drafts:
            return level
    raise unknown(
        "family of code problems", family, [name for each in LEVELS.values() for name in each]
    )


def draw(level: int, rng: random.Random, family: str | None = None) -> tuple[str, CodeDraft]:
    """Draw a draft of `level` from a random or the named family, with the family's name."""
    name = family or rng.choice(tuple(LEVELS[level]))
    return name, LEVELS[level][name](rng)
