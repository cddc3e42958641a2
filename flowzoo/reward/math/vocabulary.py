"""Words of expressions: functions, constants and letters by name."""

from __future__ import annotations

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
CALLED: Final = names("abs floor ceil max min gcd lcm det binom sign tr rank dim arg cis Re Im")
KNOWN: Final = {"Gamma": "gamma", "zeta": "zeta", "Phi": "normal"}
"""Letters that are functions with values where a bracket follows at once."""
GREEK: Final = names(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu "
    "nu xi rho sigma tau phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi "
    "Psi Omega ell hbar aleph wp"
)
COMMANDS: Final = (FUNCTIONS | CALLED | GREEK) | names(
    "frac sqrt text mathrm mathbf mathbb mathcal operatorname boxed cdot times div pi infty pm mp "
    "circ leq geq neq in notin cup cap approx equiv sum prod int lim begin end overline angle "
    "triangle binom choose bmod quad qquad left right langle rangle lfloor rfloor lceil rceil "
    "prime ldots"
)
"""Commands whose backslash is doubled on some ways; `\\\\x` is the end of a row."""
CONSTANTS: Final = {"pi": "pi", "infty": "inf", "infinity": "inf", "inf": "inf", "oo": "inf"}


def is_name(word: str) -> bool:
    """Whether a word is the name of a constant, a Greek letter or a function."""
    name = SAME.get(word, word)
    return name in CONSTANTS or name in GREEK or name in FUNCTIONS or name in ("sqrt", "abs")


def is_function(word: str) -> bool:
    """Whether a word or command is the name of a function."""
    name = SAME.get(word, word)
    return name in FUNCTIONS or name in CALLED or name == "sqrt"
