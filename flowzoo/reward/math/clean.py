r"""One spelling for the many ways to typeset an answer: wrappers, spacing, synonyms, Unicode.

`clean` is applied once to an extracted answer before it is split into tokens; it keeps every
character that means something and never joins what stood apart.
"""

from __future__ import annotations

import re

from flowzoo.reward.listed import names
from flowzoo.reward.math.spelling.forms import plain_width, respelled
from flowzoo.reward.math.vocabulary import COMMANDS


def table(pairs: str) -> dict[str, str]:
    """A mapping from `key:value` pairs separated by white space; a bare key maps to itself."""
    split = (pair.partition(":") for pair in pairs.split())
    return {key: value or key for key, _, value in split}


_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)", re.DOTALL)
_DROPPED = table(
    "left right mleft mright middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr "
    "displaystyle textstyle scriptstyle limits nolimits ! ( ) [ ] bf rm it boldmath "
    "tiny small normalsize large Large LARGE huge Huge"
)
_RENAMED = table(
    "dfrac:frac tfrac:frac cfrac:frac nicefrac:frac le:leq ge:geq ne:neq leqslant:leq geqslant:geq "
    "lt:< gt:> lbrack:[ rbrack:] lparen:( rparen:) lbrace:{ rbrace:} to:rightarrow dbinom:binom "
    "tbinom:binom vert:| lvert:| rvert:| mid:| textbar:| cdotp:cdot ast:cdot exponentialE:e "
    "imaginaryI:i emptyset:varnothing pmod:bmod mod:bmod backslash:setminus land:text{and} "
    "wedge:text{and} lor:text{or} vee:text{or} implies:Rightarrow iff:Rightarrow "
    "Longrightarrow:Rightarrow Leftrightarrow:Rightarrow "
    "lgroup:( rgroup:) lcub:{ rcub:} textdegree:degree approxeq:approx simeq:approx "
    "thickapprox:approx ldots dots:ldots dotsc:ldots dotsb:ldots dotso:ldots cdots:ldots "
    "bigcup:cup bigcap:cap "
    "operatorname*:operatorname Pr:P hbox:text textpi:pi colon:: degrees:degree euro:€ pounds:£"
)
_PLAIN_CHARACTERS = frozenset("<>[](){}|:€£")
_SPACES = ("enspace", "enskip", "thinspace", "space", "hspace", *",;: \n")
_GAPS = ("quad", "qquad")
"""Wide spaces, kept as line ends are: several equations may stand beside one another."""
_COMMANDS: dict[str, str] = {
    **{
        f"\\{name}": (other[1:] if other.startswith("\\") else other)
        if other in _PLAIN_CHARACTERS
        else f"\\{other} "
        for name, other in _RENAMED.items()
    },
    "\\lbrace": "\\{",
    "\\rbrace": "\\}",
    **{f"\\{name}": "" for name in _DROPPED},
    **{f"\\{name}": " " for name in _SPACES},
    **{f"\\{name}": "\n" for name in _GAPS},
    "\\%": "%",
    "\\#": "#",
    "\\&": "&",
    "\\textdollar": "\\$",
    "\\percent": "%",
    "\\newline": "\\\\ ",
}
_GLUED = re.compile(r"(quad|qquad|lgroup|rgroup|cdot|times|displaystyle|left|right)([A-Za-z]{1,2})")
_SIGNS = (
    "π:pi ∞:infty ∨:lor ∧:land "
    "≤:leq ⩽:leq ≥:geq ⩾:geq ≠:neq ∪:cup ∩:cap ∈:in ∖:setminus √:sqrt ×:times "
    "·:cdot ⋅:cdot ∙:cdot ÷:div ±:pm ∓:mp ≈:approx ∅:varnothing θ:theta α:alpha β:beta γ:gamma "
    "λ:lambda μ:mu σ:sigma φ:phi ω:omega Δ:Delta δ:delta ε:epsilon ρ:rho τ:tau ⌊:lfloor ⌋:rfloor "
    "⌈:lceil ⌉:rceil ⟨:langle ⟩:rangle ∠:angle ∑:sum ∏:prod ∫:int →:rightarrow ⇒:Rightarrow …:ldots"
)
_SUPER: dict[str, str] = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n", strict=True))
_FRACTIONS = table("½:1/2 ⅓:1/3 ⅔:2/3 ¼:1/4 ¾:3/4 ⅕:1/5 ⅙:1/6 ⅛:1/8 ⅜:3/8 ⅝:5/8 ⅞:7/8")
_CHARACTERS = str.maketrans(
    {
        **table("−:- –:- ‐:- ‑:- ’:' ′:' ∶:: ，:, 、:, （:( ）:) ％:% ∣:| º:°"),
        **{sign: f"\\{name} " for sign, name in table(_SIGNS).items()},
        # A fraction character after a whole number makes a mixed number.
        **{sign: f" \\frac{{{f[0]}}}{{{f[2]}}}" for sign, f in _FRACTIONS.items()},
        **dict.fromkeys("\u00a0\u2009\u202f\u2002\u2003~", " "),
    }
)
_SUPERSCRIPT = re.compile(rf"(?<=[\w)\]}}|!])[{''.join(_SUPER)}]+")
_SPECIAL = re.compile(r"[\\~\u0080-\uffff]")
_DEGREES = re.compile(
    r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\}|°|\\degree\b)|\\degree(?![A-Za-z])"
)
_REALS = re.compile(r"\\(?:mathbb|Bbb)\s*(?:\{\s*R\s*\}|R(?![A-Za-z]))(?!\s*[\^_])")
_CLOCK = re.compile(r"\s?(?<![A-Za-z])([apAP])\.[mM](?:\.|(?![A-Za-z]))")
_DOUBLEABLE = "|".join(sorted(COMMANDS | {*_RENAMED, *_DROPPED} - set("!()[]")))
_DOUBLED = re.compile(rf"\\\\(?=(?:{_DOUBLEABLE})(?![A-Za-z])|[{{}}!,;])")
_INCHES = re.compile(r"(?<=\d)''(?!')")
_GROUPED = re.compile(r"(?<=\d)(?:\{,\}|,\\!\s*|\\!,\s*)(?=\d{3}(?!\d))")
_WRAPPED = re.compile(
    r"\\(?:boxed|fbox|beginboxed|text|textbf|textit|textrm|mathrm|mathbf|mbox|mathit|bm|emph|underline)\s*\{(.*)\}",
    re.DOTALL,
)
_DOLLAR = re.compile(r"(?<!\\)\$")
_SPACE_RUN = re.compile(r"\s+")
_MARKS = ("$$", "$", "**", "*", "`", '"')
_TRAILING = re.compile(r"(?:<\|[a-z_]{2,20}\|>\s*)+$")
TEXT_COMMANDS = names(
    "text textbf textit textrm textnormal textsf texttt mathrm mathbf mathit mathsf mbox "
    "operatorname boldsymbol bm mathcal mathbb emph"
)


def clean(text: str) -> str:
    r"""`text` with its wrappers removed and every command in one spelling.

    Outer boxes, `$...$`, `**...**`, `\text{...}` and a final full stop go; `\left`, `\!`,
    `\displaystyle` go; `\dfrac` becomes `\frac`, `−` becomes `-`, `²` becomes `^{2}`.
    """
    if not text.isascii():
        text = plain_width(text)
    text = unwrap(text.strip())
    text = respelled(text) if text else text
    if _SPECIAL.search(text):
        text = _undouble(text)
        text = _GROUPED.sub(",", text)
        text = _REALS.sub(r"(-\\infty,\\infty)", text)
        text = _SUPERSCRIPT.sub(_caret, text)
        text = _COMMAND.sub(_spelled, text.translate(_CHARACTERS))
        text = _DEGREES.sub("°", text)
    if "''" in text:
        text = _INCHES.sub('"', text)
    if "..." in text:
        text = text.replace("...", "\\ldots ")
    if ".m" in text or ".M" in text:
        text = _CLOCK.sub(r" \1m", text)
    if text.count("$") > 1 and len(_DOLLAR.findall(text)) > 1:  # math marks, no currency
        text = _DOLLAR.sub(" ", text)
    text = text.replace("{,}", ",")
    if "\n" in text:
        return _SPACE_RUN.sub(lambda run: "\n" if "\n" in run[0] else " ", text).strip()
    return _SPACE_RUN.sub(" ", text).strip()


def _undouble(text: str) -> str:
    r"""Commands whose backslash was doubled on the way (`\\frac`), where that is no row end."""
    if "\\\\begin" in text:
        return text.replace("\\\\", "\\")
    if "\\begin" in text:
        return text
    return _DOUBLED.sub(lambda _: "\\", text)


def _spelled(match: re.Match[str]) -> str:
    command = match[0]
    known = _COMMANDS.get(command)
    if known is not None:
        return known
    glued = _GLUED.fullmatch(command, 1)
    if glued:
        return _COMMANDS.get(f"\\{glued[1]}", f"\\{glued[1]} ") + glued[2]
    return command


def _caret(match: re.Match[str]) -> str:
    return f"^{{{''.join(_SUPER[char] for char in match[0])}}}"


def unwrap(text: str) -> str:
    """Drop what wraps the whole of `text`, at most six layers of it."""
    for _ in range(6):
        before = text
        if "<|" in text:
            text = _TRAILING.sub("", text).rstrip()
        if text[-1:] in ".,;:" and not text.endswith(("m.", "...", "\\.", "\\,", "\\;", "\\:")):
            text = text[:-1].rstrip()
        if text.endswith("\\") and not text.endswith("\\\\"):
            text = text[:-1].rstrip()
        for mark in _MARKS:
            size = len(mark)
            if len(text) > 2 * size and text.startswith(mark) and text.endswith(mark):
                inner = text[size:-size]
                if mark not in inner.replace("\\$", "") and not inner.endswith("\\"):
                    text = inner.strip()
        if text[:2] in ("\\(", "\\[") and text[-2:] in ("\\)", "\\]"):
            inner = text[2:-2]
            if "\\(" not in inner and "\\[" not in inner:
                text = inner.strip()
        box = _WRAPPED.fullmatch(text) if text.startswith("\\") and text.endswith("}") else None
        if box and is_one_group(box[1]):
            text = box[1].strip()
        if text == before:
            break
    return text


def is_one_group(inside: str) -> bool:
    """Whether the braces inside a pair of braces close no more than they open."""
    depth, skip = 0, False
    for char in inside:
        if skip:
            skip = False
        elif char == "\\":
            skip = True
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth < 0:
                return False
    return depth == 0


_TEXT = re.compile(rf"\\(?:{'|'.join(sorted(TEXT_COMMANDS))})\s*\{{([^{{}}]*)\}}")
_NOISE = re.compile(r"\s*([^\w\s])\s*|(?<![A-Za-z\d])\s+|\s+(?![A-Za-z\d])")
_SINGLE_BRACES = re.compile(r"([\^_])\{([^{}\\])\}")
_SPACE_COMMAND = re.compile(r"(?<!\\)\\ ")
_ARTICLE = re.compile(r"^(?:an?|the|on) (?=[a-z]{3})", re.IGNORECASE)
_LETTERS = re.compile(r"[A-Za-z][A-Za-z '\-]*", re.ASCII)


def text_form(cleaned: str) -> str:
    """The form of a clean text in which texts, and formulas that cannot be read, are compared.

    Words lose their case; white space stays only between words and numbers.
    """
    text = _TEXT.sub(r" \1 ", cleaned).replace("$", "")
    text = _SPACE_RUN.sub(" ", _SPACE_COMMAND.sub(" ", text)).strip(' "')
    if not text.endswith(".."):
        text = text.rstrip(" .")
    if text[:1] == "'" == text[-1:]:
        text = text.strip("'")
    if _LETTERS.fullmatch(text):
        text = _ARTICLE.sub("", text, count=1)
        return text.casefold() if len(text) > 1 else text
    text = _NOISE.sub(lambda match: match[1] or "", text)
    return _SINGLE_BRACES.sub(r"\1\2", text).replace("**", "^")
