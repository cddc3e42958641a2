"""Level 2 of the generated code problems: functions over numbers, lists, strings and dicts."""

from __future__ import annotations

import random
from collections.abc import Callable

from flowzoo.envs.tasks.code.family import CodeDraft, families

WORDS = (
    "apple", "pear", "plum", "fig", "grape", "lemon", "melon", "cherry", "peach", "mango",
    "kiwi", "lime", "berry", "olive", "date", "quince", "apricot", "banana", "papaya", "guava",
)  # fmt: skip

Draw = Callable[[random.Random], tuple[object, ...]]


def numbers(low: int = -20, high: int = 60, least: int = 3, most: int = 9) -> Draw:
    """Draws one list of integers."""
    return lambda rng: ([rng.randint(low, high) for _ in range(rng.randint(least, most))],)


def some_words(least: int = 2, most: int = 7) -> Draw:
    """Draws one list of words, some of them repeated."""
    return lambda rng: ([rng.choice(WORDS[:12]) for _ in range(rng.randint(least, most))],)


def a_number(low: int, high: int) -> Draw:
    """Draws one integer."""
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
    """Filter, map, aggregate."""
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
    if "largest" in what:  # 0 stands for nothing, so that no value may lie below it
        change, expression = "squared", "n * n"
    inner = f"[{expression} for n in numbers if {test}]"
    return CodeDraft(
        f"Write pick(numbers): take the numbers that are {condition}, each {change}, and return "
        f"{what}.",
        f"def pick(numbers):\n    return {form.format(inner)}",
        numbers(),
        "pick",
    )


def list_window(rng: random.Random) -> CodeDraft:
    """Best sum of neighbours."""
    k, (word, name) = rng.randint(2, 5), rng.choice((("largest", "max"), ("smallest", "min")))
    drop = rng.randint(1, 9)
    return CodeDraft(
        f"Write window(numbers): the {word} sum of {k} neighbouring numbers, minus {drop}. The "
        f"list has at least {k} numbers.",
        f"def window(numbers):\n    best = sum(numbers[:{k}])\n"
        f"    for i in range(len(numbers) - {k} + 1):\n"
        f"        best = {name}(best, sum(numbers[i:i + {k}]))\n    return best - {drop}",
        numbers(least=k, most=k + 6),
        "window",
    )


def list_rotate(rng: random.Random) -> CodeDraft:
    """Rotate and combine with the original."""
    k, m = rng.randint(1, 6), rng.randint(2, 9)
    return CodeDraft(
        f"Write turn(numbers): rotate the list {k} places to the left and multiply every number "
        f"by {m}. The list is not empty.",
        f"def turn(numbers):\n    k = {k} % len(numbers)\n"
        f"    return [n * {m} for n in numbers[k:] + numbers[:k]]",
        numbers(least=2),
        "turn",
    )


def list_runs(rng: random.Random) -> CodeDraft:
    """Longest run of numbers with a property."""
    condition, test = tests(rng)
    plus = rng.randint(0, 3)
    return CodeDraft(
        "Write streak(numbers): the length of the longest run of neighbouring numbers that are all "
        f"{condition}" + (f", plus {plus}." if plus else "."),
        "def streak(numbers):\n    best = 0\n    run = 0\n    for n in numbers:\n"
        f"        if {test}:\n            run += 1\n            best = max(best, run)\n"
        f"        else:\n            run = 0\n    return best" + (f" + {plus}" if plus else ""),
        numbers(least=5, most=14),
        "streak",
    )


def pairs_apart(rng: random.Random) -> CodeDraft:
    """Count pairs by their sum or difference."""
    k = rng.randint(2, 12)
    words, test = rng.choice(
        (
            (f"differ by exactly {k}", f"abs(numbers[i] - numbers[j]) == {k}"),
            (f"add up to a multiple of {k}", f"(numbers[i] + numbers[j]) % {k} == 0"),
            (f"add up to more than {3 * k}", f"numbers[i] + numbers[j] > {3 * k}"),
        )
    )
    return CodeDraft(
        f"Write pairs(numbers): how many pairs of different positions hold numbers that {words}.",
        "def pairs(numbers):\n    count = 0\n    for i in range(len(numbers)):\n"
        f"        for j in range(i + 1, len(numbers)):\n            if {test}:\n"
        "                count += 1\n    return count",
        numbers(0, 24, 4, 9),
        "pairs",
    )


def digit_sum(rng: random.Random) -> CodeDraft:
    """Digits of a changed number."""
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
        "digits",
    )


def recurrence(rng: random.Random) -> CodeDraft:
    """A sequence given by its first number and a rule."""
    start, p, q, m = rng.randint(1, 9), rng.randint(2, 9), rng.randint(1, 20), rng.randint(50, 999)
    return CodeDraft(
        f"A sequence starts with {start}; the next number is always {p} times the number plus {q}, "
        f"modulo {m}. Write term(n): its number n, counted from 0.",
        f"def term(n):\n    value = {start}\n    for i in range(n):\n"
        f"        value = (value * {p} + {q}) % {m}\n    return value",
        a_number(0, 30),
        "term",
    )


def count_numbers(rng: random.Random) -> CodeDraft:
    """Count the numbers up to n with two properties."""
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
        "count",
    )


def letter_count(rng: random.Random) -> CodeDraft:
    """Count letters of a set, with a weight."""
    chosen = "".join(sorted(rng.sample("aeilnoprstu", rng.randint(2, 4))))
    weight = rng.randint(2, 9)
    return CodeDraft(
        f"Write value(text): each of the letters {', '.join(chosen)} is worth {weight} points and "
        "any other letter 1 point. Return the points of the text.",
        "def value(text):\n    points = 0\n    for letter in text:\n"
        f"        if letter in {chosen!r}:\n            points += {weight}\n        else:\n"
        "            points += 1\n    return points",
        lambda rng: ("".join(rng.sample(WORDS, rng.randint(1, 3))),),
        "value",
    )


def rewrite(rng: random.Random) -> CodeDraft:
    """Replace letters, then change the whole text."""
    old, new = rng.sample("aeilnoprst", 2)
    words, form = rng.choice(
        (
            ("turn the text around", "{}[::-1]"),
            ("write it in capitals", "{}.upper()"),
            ("drop the first letter", "{}[1:]"),
            ("keep every second letter, the first one included", "{}[::2]"),
        )
    )
    return CodeDraft(
        f"Write change(text): replace every {old} with {new}, then {words}.",
        f"def change(text):\n    return {form.format(f'text.replace({old!r}, {new!r})')}",
        lambda rng: (" ".join(rng.sample(WORDS, rng.randint(1, 3))),),
        "change",
    )


def shift_letters(rng: random.Random) -> CodeDraft:
    """Shift the letters of the alphabet."""
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
        "shift",
    )


def sort_words(rng: random.Random) -> CodeDraft:
    """Sort words by two keys."""
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
        "order",
    )


def count_words(rng: random.Random) -> CodeDraft:
    """A dict of counts."""
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
        "counts",
    )


def stock_value(rng: random.Random) -> CodeDraft:
    """A lookup over two dicts."""
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
        "worth",
    )


def parse_pairs(rng: random.Random) -> CodeDraft:
    """Read `name=number` items."""
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
        "read",
    )


LEVEL_2 = families(
    2, list_pipeline, list_window, list_rotate, list_runs, pairs_apart, digit_sum, recurrence,
    count_numbers, letter_count, rewrite, shift_letters, sort_words, count_words, stock_value,
    parse_pairs,
)  # fmt: skip
