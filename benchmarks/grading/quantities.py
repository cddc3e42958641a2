"""Sorts of measures: quantities with units, angles, dates, times of day."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import TypeAlias

from benchmarks.grading.figures import decimal_digits_swapped, fixed, last_digit
from benchmarks.grading.sort import Sort

Quantity: TypeAlias = tuple[Decimal, str, str, int]
"""Number, prefix, unit and its exponent."""
UNITS = {"m": "kmcμ", "g": "kmMμ", "s": "mMμn", "W": "mMkG", "Pa": "mMkG", "V": "mMkμ",
         "J": "mMkG", "Hz": "mMkG", "A": "mMkμ", "N": "mMkG"}  # fmt: skip
UNIT_NAMES = {"m": "meter", "g": "gram", "s": "second", "W": "watt", "Pa": "pascal", "V": "volt",
              "J": "joule", "Hz": "hertz", "A": "ampere", "N": "newton"}  # fmt: skip
PREFIX_NAMES = {"k": "kilo", "m": "milli", "c": "centi", "μ": "micro", "M": "mega", "n": "nano",
                "G": "giga", "": ""}  # fmt: skip


def draw_quantity(rng: Random) -> Quantity:
    """Draw a quantity in an SI unit with a prefix or none."""
    number = Decimal(rng.randint(2, 999)).scaleb(-rng.choice([0, 0, 1]))
    unit = rng.choice(list(UNITS))
    exponent = rng.choice([1, 2, 3]) if unit == "m" else 1
    prefix = rng.choice("kmc") if exponent > 1 else rng.choice([*UNITS[unit], ""])
    return number, prefix, unit, exponent


def unit_text(value: Quantity) -> str:
    """Symbol of a quantity's unit."""
    _, prefix, unit, exponent = value
    return prefix + unit + (f"^{exponent}" if exponent > 1 else "")


def quantity(value: Quantity) -> str:
    """LaTeX of a quantity."""
    _, prefix, unit, exponent = value
    power = f"^{exponent}" if exponent > 1 else ""
    return rf"{fixed(value[0])} \text{{ {prefix}{unit}}}{power}"


def unit_font(value: Quantity, rng: Random) -> str:
    """Unit symbols are upright; the space before them may have any width."""
    _, prefix, unit, exponent = value
    prefix = rng.choice(["μ", r"\mu "]) if prefix == "μ" else prefix
    power = f"^{{{exponent}}}" if exponent > 1 else ""
    space = rng.choice([r"\,", "~", r"\;", " ", ""])
    return rf"{fixed(value[0])}{space}\mathrm{{{prefix}{unit}}}{power}"


def power_inside(value: Quantity, _: Random) -> str | None:
    """The exponent of a unit may be inside its text."""
    return rf"{fixed(value[0])}\text{{ {unit_text(value)}}}" if value[3] > 1 else None


def unit_name(value: Quantity, _: Random) -> str | None:
    """A unit has a symbol and a name."""
    number, prefix, unit, exponent = value
    if unit not in UNIT_NAMES:
        return None
    power = {1: "", 2: "square ", 3: "cubic "}[exponent]
    plural = "" if unit == "Hz" else "s"
    name = f"{power}{PREFIX_NAMES[prefix]}{UNIT_NAMES[unit]}{plural}"
    return rf"{fixed(number)} \text{{ {name}}}"


def siunitx(value: Quantity, _: Random) -> str:
    """The package siunitx typesets a number and its unit."""
    return rf"\SI{{{fixed(value[0])}}}{{{unit_text(value)}}}"


def zero_behind(value: Quantity, _: Random) -> str:
    """Zeros behind the last digit of a decimal do not change its value."""
    text = fixed(value[0])
    return quantity(value).replace(text, f"{text}0" if "." in text else f"{text}.0", 1)


def other_case(value: Quantity, _: Random) -> Quantity | None:
    """Milli for mega, mega for milli, or another unit: molar, gauss, siemens."""
    number, prefix, unit, exponent = value
    if prefix in ("m", "M"):
        return number, prefix.swapcase(), unit, exponent
    return (number, prefix, unit.swapcase(), exponent) if unit in ("m", "g", "s") else None


def other_prefix(value: Quantity, rng: Random) -> Quantity:
    """Another prefix or none."""
    number, prefix, unit, exponent = value
    prefixes = [*UNITS[unit], ""] if exponent == 1 else list("kmc")
    return number, rng.choice([other for other in prefixes if other != prefix]), unit, exponent


def other_unit(value: Quantity, rng: Random) -> Quantity:
    """Another unit."""
    number, prefix, unit, _ = value
    return number, prefix, rng.choice([other for other in UNITS if other != unit]), 1


def of_number(
    change: Callable[[Decimal, Random], Decimal | None],
) -> Callable[..., Quantity | None]:
    """Change of the number of a quantity."""

    def miss(value: Quantity, rng: Random) -> Quantity | None:
        number = change(value[0], rng)
        return None if number is None else (number, *value[1:])

    return miss


QUANTITY = Sort(
    "quantity with unit",
    draw_quantity,
    quantity,
    {
        "case": other_case,
        "prefix": other_prefix,
        "unit": other_unit,
        "exponent": lambda value, _: (*value[:3], value[3] % 3 + 1) if value[2] == "m" else None,
        "off by one": of_number(last_digit),
        "order of digits": of_number(decimal_digits_swapped),
    },
    (unit_font, power_inside, unit_name, siunitx, zero_behind),
)

RATES = ("m/s", "km/h", "g/mol", "kg/m^3", "N/m", "J/K", "V/m", "m/s^2", "mol/L", "W/m^2")
Rate: TypeAlias = tuple[Decimal, str]


def draw_rate(rng: Random) -> Rate:
    """Draw a quantity in a quotient of units."""
    return Decimal(rng.randint(11, 999)).scaleb(-rng.choice([0, 1])), rng.choice(RATES)


def negative_exponent(value: Rate, rng: Random) -> str:
    """A unit in the denominator has a negative exponent."""
    top, _, bottom = value[1].partition("/")
    base, _, exponent = bottom.partition("^")
    dot = rng.choice([r"\,", r" \cdot "])
    return rf"{fixed(value[0])}\ \mathrm{{{top}{dot}{base}^{{-{exponent or 1}}}}}"


def unit_quotient(value: Rate, _rng: Random) -> str:
    """A slash is a fraction bar."""
    top, _, bottom = value[1].partition("/")
    return rf"{fixed(value[0])}\,\frac{{\mathrm{{{top}}}}}{{\mathrm{{{bottom}}}}}"


def other_rate(value: Rate, rng: Random) -> Rate:
    """Another unit of the table."""
    return value[0], rng.choice([rate for rate in RATES if rate != value[1]])


def upside_down(value: Rate, _rng: Random) -> Rate | None:
    """A quotient of units with its operands swapped."""
    top, _, bottom = value[1].partition("/")
    return value[0], f"{bottom}/{top}"


RATE = Sort(
    "quotient of units",
    draw_rate,
    lambda value: rf"{fixed(value[0])} \text{{ {value[1]}}}",
    {
        "unit": other_rate,
        "operands": upside_down,
        "off by one": lambda value, rng: (last_digit(value[0], rng), value[1]),
        "sign": lambda value, _: (-value[0], value[1]),
    },
    (negative_exponent, unit_quotient),
)

Angle: TypeAlias = tuple[int, int, int]
"""Degrees, minutes and seconds."""


def draw_angle(rng: Random) -> Angle:
    """Draw an angle with minutes, and with seconds at times."""
    return rng.randint(1, 179), rng.choice([15, 30, 45, rng.randint(1, 59)]), (
        rng.choice([0, 0, 36, rng.randint(1, 59)])
    )  # fmt: skip


def angle(value: Angle, marks: tuple[str, str, str] = (r"^\circ", "'", "''")) -> str:
    """LaTeX of an angle."""
    texts = (f"{number}{mark}" for number, mark in zip(value, marks, strict=True) if number)
    return " ".join(texts)


def other_marks(value: Angle, rng: Random) -> str:
    """Degrees, minutes and seconds have several signs."""
    return angle(value, rng.choice([
        (r"^{\circ}", r"^\prime", r"^{\prime\prime}"), ("°", "′", "″"), (r"^\circ", "'", '"'),
        (r"\degree", "'", "''"),
    ]))  # fmt: skip


def decimal_degrees(value: Angle, _: Random) -> str | None:
    """A minute is the sixtieth and a second the 3600th part of a degree."""
    total = sum(Fraction(part, 60**idx) for idx, part in enumerate(value)) * 10**4
    return rf"{fixed(Decimal(int(total)).scaleb(-4).normalize())}^\circ" if total % 1 == 0 else None


def worded_angle(value: Angle, _: Random) -> str:
    """The signs of an angle have names."""
    names = (r" \text{ degrees}", r" \text{ minutes}", r" \text{ seconds}")
    return angle(value, names)


ANGLE = Sort(
    "angle",
    draw_angle,
    angle,
    {
        "off by one": lambda value, _: (value[0], value[1] % 59 + 1, value[2]),
        "order": lambda value, _: (value[0], value[2], value[1]),
        "element": lambda value, _: (value[0], 0, value[2]),
        "unit": lambda value, _: (value[0], 0, value[1]) if not value[2] else None,
        "degree off by one": lambda value, _: (value[0] + 1, value[1], value[2]),
    },
    (other_marks, decimal_degrees, worded_angle),
)


def draw_date(rng: Random) -> date:
    """Draw a date of the last centuries."""
    return date(1800, 1, 1) + timedelta(days=rng.randrange(83_000))


def day(value: date, form: str) -> str:
    """Date in a form of `strftime`, with the day without a zero for #."""
    return value.strftime(form).replace("#", str(value.day))


def day_first(value: date, rng: Random) -> str:
    """In most countries the day is before the month."""
    return rf"\text{{{day(value, rng.choice(['# %B %Y', '# %B, %Y']))}}}"


def iso_date(value: date, _: Random) -> str:
    """Year, month and day in this order are a date of ISO 8601."""
    return value.isoformat()


def short_month(value: date, rng: Random) -> str:
    """The name of a month may be shortened to three letters."""
    text = day(value, rng.choice(["%b #, %Y", "%b. #, %Y", "# %b %Y"]))
    return rf"\text{{{text.replace('May.', 'May')}}}"


def ordinal(value: date, _: Random) -> str:
    """A day is an ordinal number."""
    teens = 11 <= value.day <= 13
    ending = "th" if teens else {1: "st", 2: "nd", 3: "rd"}.get(value.day % 10, "th")
    return rf"\text{{{day(value, f'%B #{ending}, %Y')}}}"


def with_weekday(value: date, _: Random) -> str:
    """A date has a weekday, which follows from it."""
    return rf"\text{{{day(value, '%A, %B #, %Y')}}}"


def month_for_day(value: date, _: Random) -> date | None:
    """A date with day and month swapped."""
    return value.replace(month=value.day, day=value.month) if value.day <= 12 else None


DATE = Sort(
    "date",
    draw_date,
    lambda value: rf"\text{{{day(value, '%B #, %Y')}}}",
    {
        "off by one": lambda value, rng: value + timedelta(days=rng.choice([-1, 1])),
        "order": month_for_day,
        "year": lambda value, rng: value.replace(year=value.year + rng.choice([-10, 10]), day=1),
        "month": lambda value, _: value.replace(month=value.month % 12 + 1, day=min(value.day, 28)),
    },
    (day_first, iso_date, short_month, ordinal, with_weekday),
)

Time: TypeAlias = tuple[int, int]
"""Hour from 0 to 23, and minute."""


def clock(value: Time, forms: tuple[str, str] = ("a.m.", "p.m.")) -> str:
    """Time on a clock of twelve hours."""
    hour, minute = value
    return f"{(hour - 1) % 12 + 1}:{minute:02d} {forms[hour >= 12]}"


def capital_half(value: Time, rng: Random) -> str:
    """The two halves of a day have several spellings."""
    form = rng.choice([("AM", "PM"), ("am", "pm"), ("A.M.", "P.M.")])
    return rng.choice([r"\text{{{}}}", "{}", r"\mathrm{{{}}}"]).format(clock(value, form))


def half_apart(value: Time, _rng: Random) -> str:
    """The half of a day may be a text beside the digits."""
    digits, _, half = clock(value).partition(" ")
    return rf"{digits} \text{{ {half}}}"


def of_day(value: Time, _: Random) -> str | None:
    """A clock of 24 hours needs no halves of the day for the hours that a clock of 12 lacks."""
    return f"{value[0]:02d}:{value[1]:02d}" if value[0] > 12 or not value[0] else None


TIME = Sort(
    "time of day",
    lambda rng: (rng.randrange(24), rng.randrange(60)),
    lambda value: rf"\text{{{clock(value)}}}",
    {
        "off by one": lambda value, _: (value[0], (value[1] + 1) % 60),
        "half of the day": lambda value, _: ((value[0] + 12) % 24, value[1]),
        "order of digits": lambda value, _: (
            value[0], minute if (minute := value[1] % 10 * 10 + value[1] // 10) < 60 else value[1]
        ),
        "hour off by one": lambda value, _: ((value[0] + 1) % 24, value[1]),
    },
    (capital_half, half_apart, of_day),
)  # fmt: skip
SORTS = (QUANTITY, RATE, ANGLE, DATE, TIME)
