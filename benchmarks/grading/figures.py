"""Sorts of numbers: integers, rationals, decimals, percentages, numerals, Roman ones, ratios."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from math import gcd
from random import Random

from benchmarks.grading.sort import Sort, formed, swapped


def draw_integer(rng: Random) -> int:
    """Draw an integer, a small one as often as a large one, of either sign."""
    return rng.choice([1, 1, -1]) * rng.randint(2, rng.choice([20, 999, 99_999, 9_999_999]))


def grouped(value: int, separator: str) -> str | None:
    """Digits in groups of three; None if there is one group."""
    return f"{value:,}".replace(",", separator) if abs(value) >= 1000 else None


def comma_groups(value: int, rng: Random) -> str | None:
    """A comma between groups of three digits separates thousands."""
    return grouped(value, rng.choice([",", "{,}"]))


def spaced_groups(value: int, rng: Random) -> str | None:
    """A thin space between groups of three digits separates thousands, as ISO 80000 has it."""
    return grouped(value, rng.choice([r"\,", r"\ ", "~"]))


def prime_factors(value: int, rng: Random) -> str | None:
    """An integer is the product of its prime powers."""
    rest, powers, prime = abs(value), list[str](), 2
    while rest > 1 and prime * prime <= rest:
        exponent = 0
        while rest % prime == 0:
            rest, exponent = rest // prime, exponent + 1
        if exponent:
            powers.append(f"{prime}^{{{exponent}}}" if exponent > 1 else str(prime))
        prime += 1
    powers += [str(rest)] if rest > 1 else []
    sign = "-" if value < 0 else ""
    return sign + rng.choice([r" \cdot ", r" \times "]).join(powers) if len(powers) > 1 else None


def as_quotient(value: int, rng: Random) -> str:
    """An integer is any of its multiples over the multiplier."""
    factor = rng.randint(2, 9)
    return rf"\frac{{{value * factor}}}{{{factor}}}"


def whole_decimal(value: int, rng: Random) -> str:
    """An integer is the decimal with zeros behind the point."""
    return f"{value}.{'0' * rng.randint(1, 2)}"


def digits_swapped(value: int, rng: Random) -> int | None:
    """An integer with two digits swapped."""
    text = swapped(str(abs(value)), rng)
    return None if text is None else int(text) * (-1 if value < 0 else 1)


INTEGER = Sort(
    "integer",
    draw_integer,
    str,
    {
        "off by one": lambda value, rng: value + rng.choice([-1, 1]),
        "sign": lambda value, _: -value,
        "order of digits": digits_swapped,
        "exponent": lambda value, _: value * 10,
    },
    (comma_groups, spaced_groups, prime_factors, as_quotient, whole_decimal),
)


def draw_rational(rng: Random) -> Fraction:
    """Draw a fraction that is no integer."""
    bottom = rng.randint(2, 24)
    value = Fraction(rng.randint(1, 60), bottom) * rng.choice([1, 1, -1])
    return value if value.denominator > 1 else value + Fraction(1, bottom)


def rational(value: Fraction | int) -> str:
    """LaTeX of a rational number."""
    value = Fraction(value)
    if value.denominator == 1:
        return str(value.numerator)
    sign = "-" if value < 0 else ""
    return rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def slash(value: Fraction, rng: Random) -> str:
    """A slash is a fraction bar."""
    return rng.choice(["{}/{}", "{} / {}"]).format(value.numerator, value.denominator)


def unreduced(value: Fraction, rng: Random) -> str:
    """A fraction keeps its value if both of its parts are multiplied."""
    factor = rng.choice([-1, 2, 3, 10])
    return rf"\frac{{{value.numerator * factor}}}{{{value.denominator * factor}}}"


def mixed_number(value: Fraction, _: Random) -> str | None:
    """A mixed number is the sum of its integer and its fraction."""
    whole, rest = divmod(abs(value), 1)
    sign = "-" if value < 0 else ""
    return f"{sign}{whole}{rational(rest)}" if whole and rest else None


def negative_power(value: Fraction, rng: Random) -> str:
    """Division is multiplication by the power with exponent −1."""
    dot = rng.choice([r"\cdot", r"\times"])
    return f"{value.numerator} {dot} {value.denominator}^{{-1}}"


def exact_decimal(value: Fraction, _: Random) -> str | None:
    """A fraction whose denominator divides a power of ten is a finite decimal."""
    return next((str(Decimal(int(value * 10**n)).scaleb(-n)) for n in range(1, 5)
                 if (value * 10**n).denominator == 1), None)  # fmt: skip


def period(value: Fraction, rng: Random) -> str | None:
    """A bar over digits repeats them without end; over n digits it is a fraction over 10^n − 1."""
    whole, rest = divmod(abs(value), 1)
    size = next((n for n in (1, 2, 3, 6) if rest and (rest * (10**n - 1)).denominator == 1), None)
    if size is None:
        return None
    digits = f"{int(rest * (10**size - 1)):0{size}d}"
    sign = "-" if value < 0 else ""
    return f"{sign}{whole}.\\overline{{{digits * rng.choice([1, 1, 2])}}}"


RATIONAL = Sort(
    "rational",
    draw_rational,
    rational,
    {
        "off by one": lambda value, rng: Fraction(
            value.numerator + rng.choice([-1, 1]), value.denominator
        ),
        "sign": lambda value, _: -value,
        "operands": lambda value, _: 1 / value,
        "exponent": lambda value, _: Fraction(value.numerator, value.denominator**2),
        "order of digits": lambda value, rng: Fraction(
            digits_swapped(value.numerator, rng) or value.numerator, value.denominator
        ),
    },
    (slash, unreduced, mixed_number, negative_power, exact_decimal, period),
)


def draw_decimal(rng: Random) -> Decimal:
    """Draw a decimal of one to four places whose last digit is not 0."""
    digits = rng.randint(1, rng.choice([99, 99_999])) * 10 + rng.randint(1, 9)
    return Decimal(digits * rng.choice([1, 1, -1])).scaleb(-rng.randint(1, 4))


def fixed(value: Decimal) -> str:
    """Decimal in digits, without a power of ten."""
    return f"{value:f}"


def trailing_zeros(value: Decimal, rng: Random) -> str:
    """Zeros behind the last digit of a decimal do not change its value."""
    return fixed(value) + "0" * rng.randint(1, 2)


def decimal_fraction(value: Decimal, _: Random) -> str:
    """A decimal is a fraction over a power of ten."""
    return rational(Fraction(value))


def scientific(value: Decimal, rng: Random) -> str:
    """Scientific notation is the significand times a power of ten."""
    shift = value.adjusted()
    dot = rng.choice([r"\times ", r" \cdot ", r" \times "])
    return f"{fixed(value.scaleb(-shift))}{dot}10^{{{shift}}}"


def decimal_comma(value: Decimal, _rng: Random) -> str | None:
    """In most countries the decimal sign is a comma; before three digits it may group thousands."""
    whole, _, places = fixed(value).partition(".")
    return None if len(places) == 3 and whole.strip("-") != "0" else f"{whole}{{,}}{places}"


def bare_point(value: Decimal, _: Random) -> str | None:
    """The zero before the decimal point may be left out."""
    return fixed(value).replace("0.", ".", 1) if abs(value) < 1 else None


def last_digit(value: Decimal, rng: Random) -> Decimal:
    """A decimal whose last digit is off by one."""
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    return value + Decimal(rng.choice([-1, 1])).scaleb(exponent)


def decimal_digits_swapped(value: Decimal, rng: Random) -> Decimal | None:
    """A decimal with two digits swapped."""
    sign, digits, exponent = value.as_tuple()
    text = swapped("".join(map(str, digits)), rng)
    assert isinstance(exponent, int)
    return None if text is None else Decimal(int(text) * (-1) ** sign).scaleb(exponent)


DECIMAL_MISSES = {
    "off by one": last_digit,
    "sign": lambda value, _: -value,
    "order of digits": decimal_digits_swapped,
    "exponent": lambda value, rng: value.scaleb(rng.choice([-1, 1])),
}
DECIMAL = Sort(
    "decimal",
    draw_decimal,
    fixed,
    DECIMAL_MISSES,
    (trailing_zeros, decimal_fraction, scientific, decimal_comma, bare_point),
)


def draw_percentage(rng: Random) -> Decimal:
    """Draw a percentage with one decimal place or none."""
    return rng.choice([Decimal(rng.randint(1, 99)), Decimal(rng.randint(11, 999)).scaleb(-1)])


def hundredths(value: Decimal, _: Random) -> str:
    """A percentage is a decimal: its number of hundredths."""
    return fixed(value.scaleb(-2))


def fraction_of_one(value: Decimal, _: Random) -> str:
    """A percentage is a fraction of one."""
    return rational(Fraction(value) / 100)


PERCENTAGE = Sort(
    "percentage",
    draw_percentage,
    lambda value: rf"{fixed(value)}\%",
    {**DECIMAL_MISSES, "exponent": lambda value, _: value.scaleb(-1)},
    (formed("percent_word", fixed), formed("spaced_percent", fixed), hundredths, fraction_of_one),
)

DIGITS = "0123456789ABCDEF"
PREFIXES = {2: "0b", 8: "0o", 16: "0x"}


def in_base(value: int, base: int) -> str:
    """Digits of a positive integer in a base."""
    digits = ""
    while value:
        value, digit = divmod(value, base)
        digits = DIGITS[digit] + digits
    return digits


def draw_literal(rng: Random) -> tuple[int, int]:
    """Draw a number and the base of its literal."""
    return rng.randint(2, rng.choice([40, 5_000])), rng.choice([2, 8, 16, 16])


def literal(value: tuple[int, int]) -> str:
    """Literal of a programming language."""
    number, base = value
    return PREFIXES[base] + in_base(number, base)


def small_digits(value: tuple[int, int], _: Random) -> str | None:
    """Hexadecimal digits have no case."""
    text = literal(value)
    return text.lower() if text.lower() != text else None


def subscript(value: tuple[int, int], rng: Random) -> str:
    """A subscript names the base of a numeral."""
    number, base = value
    form = rng.choice(["{}_{{{}}}", "({})_{{{}}}", r"\mathrm{{{}}}_{{{}}}"])
    return form.format(in_base(number, base), base)


def base_digits_swapped(value: tuple[int, int], rng: Random) -> tuple[int, int] | None:
    """A numeral with two digits swapped."""
    number, base = value
    text = swapped(in_base(number, base), rng)
    return None if text is None or text[0] == "0" else (int(text, base), base)


def other_base(value: tuple[int, int], rng: Random) -> tuple[int, int] | None:
    """The same digits in another base, where they are another number."""
    number, base = value
    digits = in_base(number, base)
    bases = [other for other in PREFIXES if other > max(map(DIGITS.index, digits))]
    base = rng.choice([other for other in bases if other != base] or [base])
    return int(digits, base), base


LITERAL_MISSES = {
    "off by one": lambda value, rng: (value[0] + rng.choice([-1, 1]), value[1]),
    "order of digits": base_digits_swapped,
    "base": other_base,
}
LITERAL = Sort(
    "literal of a base",
    draw_literal,
    literal,
    LITERAL_MISSES,
    (formed("typewriter", literal), small_digits, subscript),
    same=lambda first, second: first[0] == second[0],
)


def draw_numeral(rng: Random) -> tuple[int, int]:
    """Draw a number and a base from 2 to 16."""
    return rng.randint(17, rng.choice([99, 5_000])), rng.choice([2, 3, 4, 5, 6, 7, 8, 9, 12, 16])


def numeral(value: tuple[int, int]) -> str:
    """Numeral with its base as a subscript."""
    number, base = value
    return f"{in_base(number, base)}_{{{base}}}"


def bracketed_numeral(value: tuple[int, int], _: Random) -> str:
    """Brackets around the digits of a numeral have no meaning."""
    return f"({in_base(value[0], value[1])})_{{{value[1]}}}"


def worded_base(value: tuple[int, int], _: Random) -> str | None:
    """The base of a numeral may be a word."""
    number, base = value
    names = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    name = names[base - 2] if base <= 10 else None
    return name and rf"{in_base(number, base)}_{{\text{{{name}}}}}"


def next_base(value: tuple[int, int], _: Random) -> tuple[int, int]:
    """The same digits in the base above."""
    number, base = value
    return int(in_base(number, base), base + 1), base + 1


NUMERAL = Sort(
    "numeral with its base",
    draw_numeral,
    numeral,
    {**LITERAL_MISSES, "base": lambda value, rng: next_base(value, rng) if value[1] < 15 else None},
    (bracketed_numeral, worded_base),
    same=lambda first, second: first[0] == second[0],
)

ROMAN = ((1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"),
         (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"))  # fmt: skip


def roman(value: int) -> str:
    """Roman numeral of a positive integer."""
    text = ""
    for worth, letters in ROMAN:
        count, value = divmod(value, worth)
        text += letters * count
    return text


ROMAN_NUMERAL = Sort(
    "Roman numeral",
    lambda rng: roman(rng.choice([rng.randint(4, 60), rng.randint(4, 2030)])),
    lambda value: rf"\text{{{value}}}",
    {
        "order of letters": lambda value, rng: swapped(value, rng),
        "off by one": lambda value, _: value[:-1] if value[-1:] == "I" else f"{value}I",
        "letter": lambda value, rng: value.replace(
            letter := rng.choice(value), rng.choice([c for c in "IVXLCDM" if c != letter])
        ),
    },
    (formed("roman_font"),),
)


def draw_ratio(rng: Random) -> tuple[int, ...]:
    """Draw a ratio of two or three numbers in lowest terms."""
    parts = tuple(rng.randint(1, 9) for _ in range(rng.choice([2, 2, 3])))
    factor = gcd(*parts)
    return tuple(part // factor for part in parts)


def ratio(parts: tuple[int, ...]) -> str:
    """LaTeX of a ratio."""
    return ":".join(map(str, parts))


def spaced_colons(parts: tuple[int, ...], rng: Random) -> str:
    """A colon is a sign of relation; its spacing and its name have no meaning."""
    return rng.choice([" : ", r" \colon ", "{:}"]).join(map(str, parts))


def multiple(parts: tuple[int, ...], rng: Random) -> tuple[int, ...] | None:
    """A ratio keeps its value if all of its numbers are multiplied."""
    factor = rng.randint(2, 16)
    parts = tuple(part * factor for part in parts)
    return None if all(9 < part < 60 for part in parts[1:]) else parts  # 12:30 may be a time


def ratio_off_by_one(parts: tuple[int, ...], rng: Random) -> tuple[int, ...]:
    """A ratio with one number off by one."""
    idx = rng.randrange(len(parts))
    return (*parts[:idx], parts[idx] + 1, *parts[idx + 1 :])


RATIO = Sort(
    "ratio",
    draw_ratio,
    ratio,
    {"off by one": ratio_off_by_one, "operands": lambda parts, _: parts[::-1]},
    (spaced_colons,),
    (multiple,),
    same=lambda first, second: (
        [Fraction(a, first[0]) for a in first] == [Fraction(b, second[0]) for b in second]
    ),
)
SORTS = (INTEGER, RATIONAL, DECIMAL, PERCENTAGE, LITERAL, NUMERAL, ROMAN_NUMERAL, RATIO)
