"""Answers in words: numbers, dates, the real line."""

import re
from typing import Final

from flowzoo.reward.listed import names

FUNCTIONS: Final = names(
    "sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan arccot arcsec arccsc "
    "arsinh arcosh artanh ln exp log lg sech csch erf erfc"
)
SAME: Final = {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "tg": "tan", "ctg": "cot",
    "arcsinh": "arsinh", "arccosh": "arcosh", "arctanh": "artanh", "asinh": "arsinh",
    "acosh": "arcosh", "atanh": "artanh", "ceiling": "ceil", "Abs": "abs", "arctg": "arctan",
    "cosec": "csc", "lb": "log2", "sgn": "sign", "arsech": "arcsech", "Tr": "tr",
    "trace": "tr",
}  # fmt: skip
# Short names of functions if typeset as names: `sh` alone is a product.
TYPESET: Final = {
    "sh": "sinh", "ch": "cosh", "th": "tanh", "cth": "coth", "arsh": "arsinh", "arch": "arcosh",
    "arth": "artanh",
}  # fmt: skip
CALLED: Final = names("abs floor ceil max min gcd lcm det binom sign tr rank dim arg cis Re Im")
# Letters that are functions if a bracket follows immediately.
KNOWN: Final = {"Gamma": "gamma", "zeta": "zeta", "Phi": "normal"}
GREEK: Final = names(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu "
    "nu xi rho sigma tau phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi "
    "Psi Omega ell hbar aleph wp"
)
# Commands whose backslash may be escaped; `\\x` is the end of a row.
COMMANDS: Final = (FUNCTIONS | CALLED | GREEK) | names(
    "frac sqrt text mathrm mathbf mathbb mathcal operatorname boxed cdot times div pi infty pm mp "
    "circ leq geq neq in notin cup cap approx equiv sum prod int lim begin end overline angle "
    "triangle binom choose bmod quad qquad left right langle rangle lfloor rfloor lceil rceil "
    "prime ldots"
)
CONSTANTS: Final = {"pi": "pi", "infty": "inf", "infinity": "inf", "inf": "inf", "oo": "inf"}
INVERSE: Final = {
    "sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot", "sec": "arcsec",
    "csc": "arccsc", "sinh": "arsinh", "cosh": "arcosh", "tanh": "artanh",
}  # fmt: skip
ALWAYS_APPLIED: Final = frozenset("fgh")
# Letters that are functions before any bracket.
FUNCTION_LETTERS: Final = frozenset("fghpqABCDEFGHIJKLMNOPQRSTUVWXYZ") | names(
    "Phi Psi phi varphi psi sigma tau mu pi chi zeta eta Gamma Lambda Theta ell"
)
ACCENTS: Final = names("overline vec hat bar tilde dot ddot widehat overrightarrow angle")

# Commands that are factors before others; further ones are signs or text there.
OPERANDS: Final = GREEK | names("nabla partial square diamond ket bra mathbb mathcal")


PRODUCT: Final = re.compile(r"[b-df-hj-np-tv-z]{3,5}|[abcxyz]{3}")
"""Letters that are a product of variables."""


def is_name(word: str) -> bool:
    """Return True if a word is the name of a constant, a Greek letter or a function."""
    name = SAME.get(word, word)
    return name in CONSTANTS or name in GREEK or name in FUNCTIONS or name in ("sqrt", "abs")


def is_word(text: str) -> bool:
    """Return True if letters that stand alone are a word, not a product of variables."""
    return len(text) > 1 and text.isalnum() and not is_name(text) and not is_function(text)


def is_prose(word: str) -> bool:
    """Return True if letters are no product of variables beside another word, either."""
    return len(word) > 2 and is_word(word) and PRODUCT.fullmatch(word) is None


def is_function(word: str) -> bool:
    """Return True if a word or command is the name of a function."""
    name = SAME.get(word, word)
    return name in FUNCTIONS or name in CALLED or name == "sqrt"


NEGATIONS: Final = (
    r"not|never|cannot|(?-i:[Nn]o)|nor|n?either|none|nobody|nothing|nowhere|wrong|false|incorrect"
)
"""Words that deny a whole sentence."""
DENIALS: Final = (
    rf"{NEGATIONS}|without|except|exclud(?:e|ing)|eliminate|reject(?:ed)?|nicht|keine?|pas|non"
)
"""Words that deny what they stand with."""
DENIED: Final = re.compile(rf"\b(?:{DENIALS})\b|n't", re.IGNORECASE)
HEDGED: Final = re.compile(
    rf"\b(?:{DENIALS}|or|less|more|least|most|than|about|between|maybe|approximately|few|fewer"
    r"|short|too|hardly|half|some|sometimes|often|one|opposite|inverse|negation|complement"
    r"|only(?!\W*$)|unlikely|suppose|assume|doubt|unless)\b|n't|^sin\b|\b(?:minus|negative|twice|double|but)\W*$",
    re.IGNORECASE,
)
"""Words that deny it or make it another claim."""


_ONES_WORDS: Final = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen
"""
_ONES: Final = {word: n for n, word in enumerate(_ONES_WORDS.split())}
_TENS_WORDS: Final = "twenty thirty forty fifty sixty seventy eighty ninety"
_TENS: Final = {word: 10 * n for n, word in enumerate(_TENS_WORDS.split(), 2)}
_SCALES: Final = {"thousand": 1_000, "million": 10**6}
_MONTH_WORDS: Final = """
january february march april may june july august september october november december
"""
_NUMBER = re.compile(r"[A-Za-z]+(?:[ -][A-Za-z]+){0,5}")
_DATE = re.compile(
    r"(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day,? (?:the )?)?"
    r"(?:(?P<m>[A-Za-z]{3,9})\.? (?:the )?(?P<d>\d{1,2})(?:st|nd|rd|th)?"
    r"|(?:the )?(?P<d2>\d{1,2})(?:st|nd|rd|th)? (?:of )?(?P<m2>[A-Za-z]{3,9})\.?)"
    r"(?:,? (?P<y>\d{4}))?",
    re.IGNORECASE,
)


def number_in_words(text: str) -> int | None:
    """The integer below a billion that a text spells, or None."""
    if _NUMBER.fullmatch(text) is None:
        return None
    total = part = 0
    last, scale = 1_000, 10**9
    for word in re.split(r"[ -]", text.lower()):
        if word == "and" and part >= 100:
            continue
        if word in _ONES and (last > 90 or (last >= 20 and 0 < _ONES[word] < 10)):
            part += _ONES[word]
            last = 1
        elif word in _TENS and last > 90:
            part += _TENS[word]
            last = 20
        elif word == "hundred" and 0 < part < 10:
            part, last = 100 * part, 100
        elif _SCALES.get(word, scale) < scale and 0 < part < 1_000:
            scale = _SCALES[word]
            total, part, last = total + scale * part, 0, 1_000
        else:
            return None
    return total + part


_ORDINAL = re.compile(r"((?:[a-z]+-)?)([a-z]+)")
_IRREGULAR: Final = {
    "first": "one", "second": "two", "third": "three", "fifth": "five", "eighth": "eight",
    "ninth": "nine", "twelfth": "twelve",
}  # fmt: skip


def ordinal_in_words(text: str) -> int | None:
    """The number of `seventh` or `twenty-first`, or None."""
    match = _ORDINAL.fullmatch(text)
    if match is None or not (match[2] in _IRREGULAR or match[2].endswith("th")):
        return None
    stem = match[2].removesuffix("th")
    stem = f"{stem[:-2]}y" if stem.endswith("ie") else stem
    return number_in_words(match[1] + _IRREGULAR.get(match[2], stem))


def date_form(cleaned: str) -> str | None:
    """One spelling of a date with a month in words, or None."""
    match = _DATE.fullmatch(cleaned)
    if match is None:
        return None
    name = (match["m"] or match["m2"]).lower()
    months = [n for n, month in enumerate(_MONTH_WORDS.split(), 1) if name in (month, month[:3])]
    month = 9 if name == "sept" else months[0] if months else None
    day = int(match["d"] or match["d2"])
    return f"{month}/{day}/{match['y'] or ''}" if month and 1 <= day <= 31 else None
