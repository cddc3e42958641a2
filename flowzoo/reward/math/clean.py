r"""Normalization of the typesetting of answers: wrappers, spacing, synonyms, Unicode.

`clean` is applied once to an extracted answer before it is tokenized; it keeps every meaningful
character and never joins separate parts.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, TypeAlias
from unicodedata import decimal, normalize

from flowzoo.reward.listed import names
from flowzoo.reward.math.vocabulary import COMMANDS, HEDGED

_FULL_WIDTH: Final = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_DECIMAL_DIGIT = re.compile(r"(?![0-9])\d")
_MICRO = re.compile(
    r"(?<=[\d{ ~])[μµ](?=(?:m|g|s|A|V|F|W|L|l|mol|H|C|N|J|Pa|Ω)(?![A-Za-z]))"
    r"|\\mu\s*\\(?:text|mathrm)\s*\{\s*(?=[A-Za-z]{1,3}\s*\})"
)
# Control characters that are the beginning of a command whose backslash a data file has read.
_READ: Final = {"\a": "a", "\b": "b", "\v": "v", "\f": "f", "\t": "t"}
_EATEN = re.compile(
    r"\a(?=lpha|ngle|pprox)|\x08(?=eta|inom|ar|egin|oxed)|\v(?=ec|ar)|\f(?=rac|orall)"
    r"|\t(?=(?:ext|imes|heta|an|frac|au)(?![a-z]))"
)
_HTML = re.compile(r"<su([pb])>(.{1,40}?)</su[pb]>")
_TAG = re.compile(r"</?(?:[biup]|strong|em|span|div|br|code|mark|li|[uo]l)(?: [^<>]{0,80})?/? ?>")


def repaired(text: str) -> str:
    """Restore commands whose backslash was read as that of a control character, and HTML."""
    text = _EATEN.sub(lambda m: f"\\{_READ[m[0]]}", text)
    if "</" not in text:
        return text
    text = _HTML.sub(lambda m: f"{'^' if m[1] == 'p' else '_'}{{{m[2]}}}", text)
    return _TAG.sub("", text)


def plain_width(text: str) -> str:
    """Convert full-width letters and signs, and digits of all scripts, to the usual ones."""
    return _DECIMAL_DIGIT.sub(lambda m: str(decimal(m[0])), text.translate(_FULL_WIDTH))


_THUS = re.compile(r"(?:=(?!=)>?|∴|\\therefore(?![A-Za-z]))\s*(?=\S)")
_AMOUNT: Final = (
    r"\b(?:increase|decrease|rise|drop|gain|loss|profit|discount|total|value) (?:of|by)"
)
_INTRODUCTION = re.compile(
    r"\\(?:text|textbf|textrm|mathrm|mbox)\s*\{(?P<words>[A-Za-z' ]{0,60}"
    rf"(?:[:=]|\bis|\bare|\bonly|\bexactly|{_AMOUNT}))\s*\}}\s*(?=\S)"
    rf"|(?P<plain>[A-Za-z' ]{{0,40}}\b(?:is|are|exactly|{_AMOUNT}))\s+(?=[-$\\]*[\d.])"
    r"|(?:final )?answer\s*:\s*(?=[^\s:])",
    re.IGNORECASE,
)
_NAMED = re.compile(r"\b(?:m(?:ax|in)(?:imum)?|odds)\b", re.IGNORECASE)
_AGAIN = re.compile(r"\b(?:is|are)\b")
_CHANGE = re.compile(r"increase|decrease|rise|drop|gain|loss|profit|discount", re.IGNORECASE)
_NEXT_NAME = re.compile(
    r"(?:[,;]\s*\\text\s*\{|\\text\s*\{\s*(?:[,;]|and|or|but)\b)[^{}]*[A-Za-z]{3}"
)


def _without_lead(text: str) -> str:
    # `text` without words such as `\text{The total is}` before its value.
    thus = _THUS.match(text)
    text = text[thus.end() :] if thus else text
    match = _INTRODUCTION.match(text)
    lead = (match["words"] or match["plain"] or "") if match else ""
    is_name = HEDGED.search(lead) or _NAMED.search(lead)
    goes_on = match and (_NEXT_NAME.search(text, match.end()) or _AGAIN.search(text, match.end()))
    if match is None or is_name or goes_on:
        return text
    change = _CHANGE.search(lead)
    return f"{text[match.end() :]} \\text{{ {change[0]}}}" if change else text[match.end() :]


_REMARK = re.compile(
    r"(?:\\(?:text|textrm|mbox|mathrm)\s*\{\s*[,;(]?|[\s,;(])\s*(?:since|because|reject(?:ing|ed)?"
    r"|discard(?:ing|ed)?|ignor(?:ing|ed)|extraneous|where|for (?:all|any|every|each|some))\b",
    re.IGNORECASE,
)
_VALUE = re.compile(r"[\d=\\<>]|(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_OTHER = re.compile(r"\bor\b", re.IGNORECASE)


def _without_remark(text: str) -> str:
    # `text` without words that only comment on it, `(reject x = -2)`, `for all n`.
    match = _REMARK.search(text)
    head = text[: match.start()].rstrip(" ,;") if match else ""
    is_whole = all(head.count(a) == head.count(b) for a, b in ("{}", "()", "[]"))
    # What another answer follows is more than a remark.
    is_last = match is not None and _OTHER.search(text, match.end()) is None
    is_value = _VALUE.search(head) is not None
    return head if is_value and is_last and is_whole and head.count("$") % 2 == 0 else text


_GAP: Final = r"[\s,;]{0,6}"
_TEXT_OPEN: Final = r"\\(?:text|textrm|mbox|mathrm)\s*\{\s*,?\s*"
_WHERE: Final = rf"{_TEXT_OPEN}(?:,|where|for|with)?"
_ANY: Final = r"(?: all| any| some| every| an?)?"
_FAMILY = re.compile(
    rf"{_GAP}\(?{_GAP}(?:"
    rf"(?:{_WHERE}{_ANY}\s*\}})?{_GAP}(?P<a>[A-Za-z])\s*(?:"
    r"\\in\s*(?:\\(?:mathbb|mathbf|Bbb)\s*(?:\{\s*(?P<set>[ZR])\s*\}|Z(?![A-Za-z]))|ℤ)"
    rf"|{_TEXT_OPEN}(?:is|being)?\s*(?:an|any|some)?\s*(?:integer|whole number)\s*\}})"
    rf"|{_WHERE}{_ANY}\s*integers?\s*\}}{_GAP}(?P<b>[A-Za-z])){_GAP}\)?$"
)


def _family(text: str) -> str:
    # A family with the condition on its letter as `, k \in \mathbb{Z}`.
    match = None if text.startswith("\\{") else _FAMILY.search(text)
    if not match or not match.start():
        return text
    letter, domain = match["a"] or match["b"], match["set"] or "Z"
    return f"{text[: match.start()]}, {letter} \\in \\mathbb{{{domain}}}"


_UNIT_VECTOR = re.compile(
    r"\\(?:hat|mathbf|vec|widehat|boldsymbol|bm)\s*"
    r"(?:\{\s*\\?([ijk])(?:math)?\s*\}|\\([ijk])math(?![A-Za-z])|([ijk])(?![A-Za-z]))"
)


def _unit_vectors(text: str) -> str:
    vectors = _UNIT_VECTOR.findall(text)
    if not any("j" in letters or "k" in letters for letters in vectors):
        return text
    return _UNIT_VECTOR.sub(lambda m: f"\\hat{{{m[1] or m[2] or m[3]}}}", text)


_OVER = re.compile(r"\\over(?![A-Za-z])")


def _brace_over(text: str) -> str:
    # A fraction that `\over` makes of the whole text, in braces.
    heads = (text[: match.start()] for match in _OVER.finditer(text))
    return f"{{{text}}}" if any(head.count("{") == head.count("}") for head in heads) else text


# Words that begin another part of an answer, after a value: `5 \\text{ at } x = 2`.
_NEXT_PART = re.compile(r"(?<=[\w)\]}])\s*\\text\s*\{\s*((?:at|when|with|the)\b[^{}]*\}\s*[^\s}])")


def _split_parts(text: str) -> str:
    is_one = len(_NEXT_PART.findall(text)) == 1
    return _NEXT_PART.sub(r", \\text{\1", text) if is_one else text


def _quantity(match: re.Match[str]) -> str:
    # `\SI{5}{\kilo\watt}` as a number and the words of its unit.
    unit = "°" if "ang" in match[0][:5] else (match[2] or "").replace("\\per", " per ")
    return f"{match[1]}\\text{{ {unit.replace(chr(92), '')}}}" if unit else match[1]


def _partial(match: re.Match[str]) -> str:
    # `f_x`, `f_{xy}` with its letters in order.
    if not match[3] and not match[4]:
        return f"{match[1]}_{match[2]}"
    return f"{match[1]}_{{{''.join(sorted(match[2] + (match[4] or match[2])))}}}"


def _species(match: re.Match[str]) -> str:
    # `SO4^2-` of a chemical formula as `SO_{4}^{2-}`.
    counted = re.sub(r"(?<=[A-Za-z)\]])(\d+)", r"_{\1}", match[1])
    return re.sub(r"\^?(\d*[+-])$", r"^{\1}", counted)


Rewriting: TypeAlias = tuple[tuple[str, ...], Callable[[str], str]]
"""Texts of which one must occur, and what it does with an answer."""


def _rewritten(text: str, rewritings: Sequence[Rewriting]) -> str:
    for signs, rewriting in rewritings:
        for sign in signs:
            if sign in text:
                text = rewriting(text)
                break
    return text


def _rule(
    signs: str, pattern: str, new: str | Callable[[re.Match[str]], str], flags: int = 0
) -> Rewriting:
    # The replacement of every match.
    compiled = re.compile(pattern, flags)
    return tuple(signs.split()), lambda text: compiled.sub(new, text)


_DIGIT: Final = r"\{?\s*(\d)\s*\}?"
_ARG: Final = r"(?:\{\s*)?(\d{1,6}|[A-Za-z]|(?<=\{)\w{1,6})\s*\}?"
_NTH: Final = r"(?:st|nd|rd|th)"
_D: Final = r"(?:d|\\mathrm\s*\{\s*d\s*\})"
_Z: Final = r"\\mathbb\s*(?:\{\s*Z\s*\}|Z(?![A-Za-z]))"
_R: Final = r"\\(?:mathbb|Bbb)\s*(?:\{\s*R\s*\}|R(?![A-Za-z]))"
_OF_COMMANDS: Final[tuple[Rewriting, ...]] = (
    _rule("\\SI \\qty \\num \\ang{ \\si \\unit",
          r"\\(?:SI|qty|num|ang|si|unit)\s*\{([^{}]*)\}\s*(?:\{([^{}]*)\})?", _quantity),
    _rule("Omega", r"\\(?:text|mathrm)\s*\{([^{}\\]*)(?:\}\s*\\Omega|\\Omega\s*\})"
          r"|(?<=\d)\s*\\Omega\s*$", r"\\text{ \1Ω}"),
    _rule("cdot", r"(\\(?:text|mathrm)\s*\{[^{}\\]*)\\cdot\s*", r"\1 "),
    _rule("mapsto",
          r"(?:([A-Za-z])\s*(?::|\\colon)\s*|^\s*)([A-Za-z])\s*\\(?:long)?mapsto(?![A-Za-z])",
          lambda match: f"{match[1] or 'f'}({match[2]})="),
    _rule("color", r"\\(?:text|f)?color(?:box)?\s*(?:\[[A-Za-z]*\])?\s*\{[\w!. ]*\}\s*", ""),
    _rule("tag label space phantom kern skip",
          r"\\(?:tag\*?|label|[hv]space\*?|[hv]?phantom|[hvm]skip|m?kern)"
          r"(?:\s*\{[^{}]*\}|\s*-?[\d.]+\s*(?:pt|em|ex|mu|mm|cm|in))", " "),
    _rule("partial", r"\\frac\s*\{\s*\\partial(?:\s*\^\s*\{?2\}?)?\s*([A-Za-z])\s*\}"
          r"\s*\{\s*\\partial\s*([A-Za-z])(?:\s*\^\s*\{?(2)\}?|\s*\\partial\s*([A-Za-z]))?\s*\}",
          _partial),
    _rule("mathbb",
          rf"{_Z}\s*/\s*(?:(\d+|[a-z])\s*{_Z}|\((\d+|[a-z])\)|\\langle\s*(\d+)\s*\\rangle)",
          r"\\mathbb{Z}_{\1\2\3}"),
    _rule("mathbb Bbb",
          r"\\(?:mathbb|Bbb)\s*(?:\{\s*R\s*\}|R)\s*"
          r"(?:(\^\s*(?:\{\s*\+\s*\}|\+)|_\s*\{\s*>\s*0\s*\})|_\s*\{\s*\\geq\s*0\s*\})",
          lambda match: r"(0,\infty)" if match[1] else r"[0,\infty)"),
    _rule("rangle", r"\|\s*(\\[A-Za-z]+|[\w+-]{1,12})\s*\\rangle(?![A-Za-z])", r"\\ket_{\1}"),
    _rule("\\ket", r"\\ket\s*\{([^{}]*)\}", r"\\ket_{\1}"),
    _rule("\\ce", r"\\ce\s*\{([\w()\[\]^+-]+)\}", _species),
    _rule("\\circ", r"\(\s*(\w)\s*\\circ\s*(\w)\s*\)\s*\(([^()]*)\)", r"\1(\2(\3))"),
    _rule("\\\\", r"\\\\\s*\[\s*-?[\d.]+\s*(?:pt|em|ex|mm|cm|in)\s*\]", r"\\\\"),
    _rule("\\not", r"\\not\s*(?:=|\\eq(?![A-Za-z]))", r"\\neq "),
    _rule("\\not", r"\\not\s*\\in(?![A-Za-z])", r"\\notin "),
    _rule("\\{", rf"({_R}|\\\}})\s*-\s*(?=\\\{{)", r"\1\\setminus "),
    _rule("angle", r"\\angle\s*(?:\{\s*)?([A-Z]{3})(?![A-Za-z])(?:\s*\})?",
          lambda match: rf"\angle {min(match[1], match[1][::-1])}"),
    (("\\text",), _split_parts),
    (("hat", "vec", "bf", "bold", "bm"), _unit_vectors),
    (("Z", "R", "ℤ", "integer", "whole"), _family),
    (("\\over",), _brace_over),
)  # fmt: skip
_REWRITINGS: Final[tuple[Rewriting, ...]] = (
    (("...",), lambda text: text.replace("...", "\\ldots ")),
    (("",), lambda text: text if text[:1].isdigit() else _without_lead(text)),
    (("\\",), lambda text: _rewritten(text, _OF_COMMANDS)),
    _rule("d", rf"\\frac\s*\{{\s*{_D}\s*(?:\^\s*\{{?(2)\}}?)?\s*([A-Za-z])\s*\}}"
          rf"\s*\{{\s*{_D}\s*x\s*(?:\^\s*\{{?2\}}?)?\s*\}}"
          r"|(?<![A-Za-z])(?:d([A-Za-z])/dx)(?![A-Za-z])",
          lambda match: (match[2] or match[3]) + ("''" if match[1] else "'")),
    (("",), _without_remark),
    _rule("'", r"(?<![\d.])\d{1,3}(?:'\d{3})+(?!\d)", lambda match: match[0].replace("'", "")),
    _rule("st nd rd th", rf"(?<=\d)(?:{_NTH}|\^?\\text\s*\{{\s*{_NTH}\s*\}}|\^\{{\s*{_NTH}\s*\}}"
          rf"|\^\{{\s*\\text\s*\{{\s*{_NTH}\s*\}}\s*\}})(?![A-Za-z])", ""),
    _rule("C",
          rf"(?<![\w}})])(?:\{{\s*\}})?[\^_]{_ARG}\s*(?:\\(?:text|mathrm)\s*\{{C\}}|C)\s*_{_ARG}",
          r"\\binom{\1}{\2}"),
    _rule("C", rf"(?<![\w\\}}])C\s*_{_ARG}\s*\^{_ARG}", r"\\binom{\1}{\2}"),
    _rule("C", r"(?<![\w\\])C\s*\(\s*(\w{1,6})\s*,\s*(\w{1,6})\s*\)", r"\\binom{\1}{\2}"),
    _rule("C", r"^(\d{1,3})C(\d{1,3})$", r"\\binom{\1}{\2}"),
    _rule("|", r"^(\d+) ?\| ?([a-z])$", r"\2\\equiv 0 (\\bmod \1)"),
    _rule("np. math. numpy. sympy.", r"\b(?:np|math|numpy|sympy)\.(?=[a-z])", ""),
    # Decimal commas, also beside a bar, then periods of decimals.
    _rule("|", r"\((?=[^()]*\|)(?=[^()]*\d,\d)[^()]*\)",
          lambda match: re.sub(r"(?<=\d),(?=\d)", ".", match[0])),
    _rule("(", r"^(-?\d+),(\d*)\((\d{1,40})\)$", r"\1.\2\\overline{\3}"),
    _rule("{,}", r"(?<=\d)\{,\}(?=\d)(?!\d{3}(?!\d))|(?<=\b0)\{,\}(?=\d)", "."),
    _rule("\\dot", rf"(\d*\.\d*)\\dot\s*{_DIGIT}(\d*)\\dot\s*{_DIGIT}", r"\1\\overline{\2\3\4}"),
    _rule("bar \\dot overline",
          r"(\d*\.\d*)\\(?:bar|dot|overline|overbar)\s*(?:\{\s*(\d{1,40})\s*\}|(\d))",
          r"\1\\overline{\2\3}"),
    _rule("ldots", r"(\\overline\s*\{\d+\})\s*\\ldots", r"\1"),
    _rule(")", r"^([-+]?\d*\.\d{0,40})\((\d{1,40})\)$", r"\1\\overline{\2}"),
    _rule("ldots", r"^([-+]?\d*\.\d{0,40}?)(?:(\d)\2{2,40}|(\d{2,12}?)\3{1,12})\s*\\ldots\s*$",
          r"\1\\overline{\2\3}"),
    _rule("mathbb Bbb", rf"{_R}(?!\s*[\^_])", r"(-\\infty,\\infty)"),
    _rule("''", r"(?<=\d)''(?!')", '"'),
    (("per cent",), lambda text: text.replace("per cent", "percent")),
    _rule(".m .M", r"\s?(?<![A-Za-z])([apAP])\.[mM](?:\.|(?![A-Za-z]))", r" \1m"),
    # Math marks, not a currency.
    (("$",), lambda text: _DOLLAR.sub(" ", text) if len(_DOLLAR.findall(text)) > 1 else text),
    (("{,}",), lambda text: text.replace("{,}", ",")),
    _rule("{", r"(?<![A-Za-z])\{ ?([:=<>+*/-]|b?mod) ?\}", r" \1 "),
    _rule("T", r"([(\[]) *([-\d./]+(?: +[-\d./]+)+) *(?=[)\]]\^ ?\{? ?T)",
          lambda match: match[1] + ",".join(match[2].split())),
)  # fmt: skip


def table(pairs: str) -> dict[str, str]:
    """A mapping from `key:value` pairs separated by white space; a bare key maps to itself."""
    split = (pair.partition(":") for pair in pairs.split())
    return {key: value or key for key, _, value in split}


_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)", re.DOTALL)
_DROPPED = table(
    "left right mleft mright middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr "
    "displaystyle textstyle scriptstyle limits nolimits ! ( ) [ ] bf rm it boldmath "
    "tiny small normalsize large Large LARGE huge Huge ensuremath nonumber notag mathstrut strut "
    "mathord mathop mathrel mathbin mathinner allowbreak nobreak relax null noindent"
)
_RENAMED = table(
    "dfrac:frac tfrac:frac cfrac:frac nicefrac:frac le:leq ge:geq ne:neq leqslant:leq geqslant:geq "
    "lt:< gt:> lbrack:[ rbrack:] lparen:( rparen:) lbrace:{ rbrace:} to:rightarrow dbinom:binom "
    "tbinom:binom vert:| lvert:| rvert:| mid:| textbar:| cdotp:cdot ast:cdot exponentialE:e "
    "imaginaryI:i emptyset:varnothing pmod:bmod mod:bmod backslash:setminus wedge:land vee:lor "
    "neg:lnot implies:Rightarrow Longrightarrow:Rightarrow iff:Leftrightarrow "
    "bigwedge:land bigvee:lor Longleftrightarrow:Leftrightarrow "
    "lgroup:( rgroup:) lcub:{ rcub:} textdegree:degree approxeq:approx simeq:approx "
    "thickapprox:approx ldots dots:ldots dotsc:ldots dotsb:ldots dotso:ldots cdots:ldots "
    "bigcup:cup bigcap:cap "
    "operatorname*:operatorname Pr:P hbox:text textpi:pi colon:: degrees:degree euro:€ pounds:£"
)
_PLAIN_CHARACTERS = frozenset("<>[](){}|:€£")
_SPACES = ("enspace", "enskip", "thinspace", "space", "hfill", *",;: \n")
# Wide spaces, kept like line ends, since they may separate equations.
_GAPS = ("quad", "qquad")
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
    **{f"\\{name}": "T " for name in ("top", "intercal", "transpose")},
    "\\%": "%",
    "\\#": "#",
    "\\&": "&",
    "\\textdollar": "\\$",
    "\\percent": "%",
    "\\newline": "\\\\ ",
}
_GLUED = re.compile(r"(quad|qquad|lgroup|rgroup|cdot|times|displaystyle|left|right)([A-Za-z]{1,2})")
_SIGNS = (
    "π:pi ∞:infty ∨:lor ∧:land ¬:lnot ⊕:oplus ⇔:Leftrightarrow ↔:Leftrightarrow ∀:forall ∃:exists "
    "≤:leq ⩽:leq ≥:geq ⩾:geq ≠:neq ≡:equiv ≅:cong ∪:cup ∩:cap ∈:in ∖:setminus √:sqrt ×:times "
    "·:cdot ⋅:cdot ∙:cdot ÷:div ±:pm ∓:mp ≈:approx ∅:varnothing θ:theta α:alpha β:beta γ:gamma "
    "λ:lambda μ:mu σ:sigma φ:phi ω:omega Δ:Delta δ:delta ε:epsilon ρ:rho τ:tau ⌊:lfloor ⌋:rfloor "
    "⌈:lceil ⌉:rceil ⟨:langle ⟩:rangle ∠:angle ∑:sum ∏:prod ∫:int →:rightarrow ⇒:Rightarrow …:ldots"
)
_SCRIPTS = {"^": "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿⁱᵏᵐᵗˣᵀ", "_": "₀₁₂₃₄₅₆₇₈₉₋₊ₙᵢⱼₖₘₜₓ"}
_FRACTIONS = table("½:1/2 ⅓:1/3 ⅔:2/3 ¼:1/4 ¾:3/4 ⅕:1/5 ⅙:1/6 ⅛:1/8 ⅜:3/8 ⅝:5/8 ⅞:7/8")
_CHARACTERS = str.maketrans(
    {
        **table("−:- –:- ‐:- ‑:- ’:' ′:' ″:'' ∶:: ，:, 、:, （:( ）:) ％:% ∣:| º:°"),
        **{sign: f"\\{name} " for sign, name in table(_SIGNS).items()},
        "℃": "°\\text{C}",
        "℉": "°\\text{F}",
        # A fraction character after a whole number makes a mixed number.
        **{sign: f" \\frac{{{f[0]}}}{{{f[2]}}}" for sign, f in _FRACTIONS.items()},
        **dict.fromkeys("\u00a0\u2009\u202f\u2002\u2003~", " "),
    }
)
_SCRIPT = re.compile(rf"(?<=[\w)\]}}|!])(?:[{_SCRIPTS['^']}]+|[{_SCRIPTS['_']}]+)")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:/\d+)?", re.ASCII)
_SPECIAL = re.compile(r"[\\~\u0080-\uffff]")
_DEGREES = re.compile(
    r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\}|°|\\degree\b)|\\degree(?![A-Za-z])"
)
_DOUBLEABLE = "|".join(sorted(COMMANDS | {*_RENAMED, *_DROPPED} - set("!()[]")))
_DOUBLED = re.compile(rf"\\\\(?=(?:{_DOUBLEABLE})(?![A-Za-z])|[{{}}!,;])")
_GROUPED = re.compile(r"(?<=\d)(?<!\b0)(?:\{,\}|,\\!\s*|\\!,\s*)(?=\d{3}(?!\d))")
_EDGES = re.compile(
    r"^(?:\\(?:displaystyle|textstyle|q?quad|[,;:! ])\s*|[~\s])+|(?<!\\)(?:\\[,;:!]|~)+$"
)
_DOLLAR = re.compile(r"(?<!\\)\$")
_SPACE_RUN = re.compile(r"\s+")
_MARKS = ("$$", "$", "**", "*", "__", "`", '"')
_TRAILING = re.compile(r"(?:<\|[a-z_]{2,20}\|>\s*)+$")
TEXT_COMMANDS = names(
    "text textbf textit textrm textnormal textsf texttt mathrm mathbf mathit mathsf mathtt mbox "
    "operatorname boldsymbol bm mathcal mathbb emph pmb"
)
_WRAPPERS = TEXT_COMMANDS - {"mathcal", "mathbb", "operatorname"} | {"boxed", "fbox", "underline"}
_WRAPPED = re.compile(
    rf"(?:\\(?:beginboxed|{'|'.join(sorted(_WRAPPERS))})\s*|(?=(?:[^,]|\\,)*$|\{{\\)(?!.*\\(?:choose|over)))\{{(.*)\}}",
    re.DOTALL,
)


@lru_cache(maxsize=512)  # an answer is looked at as a choice, as a text and as a formula
def clean(text: str) -> str:
    r"""Remove the wrappers of `text` and normalize the spelling of commands."""
    # Removes outer boxes, `$...$`, `**...**`, `\text{...}`, a final full stop, `\left`, `\!` and
    # `\displaystyle`; `\dfrac` becomes `\frac`, `−` becomes `-`, `²` becomes `^{2}`.
    if not text.isascii() or "\\mu" in text:
        text = _MICRO.sub(lambda m: "u" if len(m[0]) == 1 else r"\text{ u", plain_width(text))
    text = unwrap(text.strip())
    if _NUMBER.fullmatch(text):
        return text
    if _SPECIAL.search(text):
        text = _undouble(text)
        text = _GROUPED.sub(",", text)
        text = _SCRIPT.sub(_typeset, text)
        text = _COMMAND.sub(_spell, text.translate(_CHARACTERS))
        text = _DEGREES.sub("°", text)
    text = _rewritten(text, _REWRITINGS)
    return _SPACE_RUN.sub(lambda run: "\n" if "\n" in run[0] else " ", text).strip()


def _undouble(text: str) -> str:
    # Commands with an escaped backslash (`\\frac`) that is not a row end.
    if "\\\\begin" in text:
        return text.replace("\\\\", "\\")
    if "\\begin" in text:
        return text
    return _DOUBLED.sub(lambda _: "\\", text)


def _spell(match: re.Match[str]) -> str:
    command = match[0]
    spelling = _COMMANDS.get(command)
    if spelling is not None:
        return spelling
    glued = _GLUED.fullmatch(command, 1)
    if glued:
        return _COMMANDS.get(f"\\{glued[1]}", f"\\{glued[1]} ") + glued[2]
    return command


def _typeset(match: re.Match[str]) -> str:
    mark = next(mark for mark, signs in _SCRIPTS.items() if match[0][0] in signs)
    return f"{mark}{{{normalize('NFKC', match[0])}}}"


def unwrap(text: str) -> str:
    """Remove at most six wrappers around the whole of `text`."""
    for _ in range(6):
        before = text
        text = _TRAILING.sub("", _EDGES.sub("", text)).rstrip()
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
        box = _WRAPPED.fullmatch(text) if text[:1] in ("\\", "{") and text[-1:] == "}" else None
        if box and is_one_group(box[1]) and not _INDEXED.fullmatch(box[1].strip()):
            text = box[1].strip()
        if text == before:
            break
    return text


_INDEXED = re.compile(r"[A-Za-z]+\d\w*", re.ASCII)
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)


def is_one_group(inside: str) -> bool:
    """Return True if the braces inside a pair of braces close no more than they open."""
    depth = 0
    for brace in _BRACES.findall(inside):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    return depth == 0


_TEXT = re.compile(rf"\\(?:{'|'.join(sorted(TEXT_COMMANDS))})\s*\{{([^{{}}]*)\}}")
_NOISE = re.compile(r"\s*([^\w\s])\s*|(?<![A-Za-z\d])\s+|\s+(?![A-Za-z\d])")
_SINGLE_BRACES = re.compile(r"([\^_]|\\(?:bar|hat|vec|dot|overline)) ?\{([^{}\\])\}")
_NO_BASE = re.compile(r"\{ ?\}(?=[\^_])")
_SCRIPTED = re.compile(r"(\^ ?(?:\w|\{[^{}]*\})) ?(_ ?(?:\w|\{[^{}]*\}))")
_SCRIPT_END = re.compile(r"(?<=[\^_])(\w)\s+")
_SPACE_COMMAND = re.compile(r"(?<!\\)\\ ")
_ARTICLE = re.compile(r"^(?:an?|the|on) (?=[a-z]{3})", re.IGNORECASE)
_LETTERS = re.compile(r"[A-Za-z][A-Za-z '\-]*", re.ASCII)
# Shorter runs of letters are products of variables, whose case counts: `R - r` is not `r - R`.
_LONG_WORD = re.compile(r"[A-Za-z]{3}|^(?:no|pi)$", re.IGNORECASE)


def text_form(cleaned: str) -> str:
    """Normal form of a clean text, to compare texts and unreadable formulas."""
    # Words become lower case; white space stays only between words and numbers.
    text = _TEXT.sub(r" \1 ", cleaned).replace("$", "")
    text = _SPACE_RUN.sub(" ", _SPACE_COMMAND.sub(" ", text)).strip(' "')
    if not text.endswith(".."):
        text = text.rstrip(" .")
    if text[:1] == "'" == text[-1:]:
        text = text.strip("'")
    if _LETTERS.fullmatch(text) and _LONG_WORD.search(text):
        return _ARTICLE.sub("", text, count=1).casefold()
    text = _SCRIPTED.sub(r"\2\1", _NO_BASE.sub("", text))
    text = _SINGLE_BRACES.sub(r"\1 \2 ", text)
    text = _NOISE.sub(lambda match: match[1] or "", text)
    return _SCRIPT_END.sub(r"\1", text).replace("**", "^")


_ROWS: Final = re.compile(
    r"\\begin\s?\{(cases|aligned|align\*?|gathered|split|array|system)\}\s?(?:\{[lcr| ]*\})?"
    r"(?P<rows>.*)\\end\s?\{\1\}",
    re.DOTALL,
)
_RELATION = re.compile(r"[<>=]|\\(?:leq|geq|neq|equiv|in)(?![A-Za-z])")


def rows_of(cleaned: str) -> str | None:
    """Rows of an answer that is a single environment of relations, without alignment marks."""
    match = _ROWS.fullmatch(cleaned)
    if match is None or "\\begin" in match["rows"] or "\\end" in match["rows"]:
        return None
    rows = [row for row in match["rows"].split("\\\\") if row.strip()]
    if match[1] == "cases" and "&" in match["rows"]:
        return None  # pieces of a function, each with its condition
    if not all(_RELATION.search(row) for row in rows):
        return None
    return "\\\\".join(rows).replace("&", " ").strip()


_PIECES: Final = re.compile(
    r"(?:[^=\\]{1,24}=)?\s*\\begin\s?\{cases\}(?P<rows>.*)\\end\s?\{cases\}", re.DOTALL
)
_LED_BY = re.compile(
    r"(?:\\text\s?\{\s*,?\s*(?:if|for|when|where)?\s*\}|\b(?:if|for|when)\b)", re.IGNORECASE
)


def pieces_of(cleaned: str) -> list[tuple[str, str]] | None:
    """Value and condition of each piece of a piecewise function, or None."""
    match = _PIECES.fullmatch(cleaned)
    if match is None or "&" not in match["rows"] or "\\begin" in match["rows"]:
        return None
    rows = [row.split("&") for row in match["rows"].split("\\\\") if row.strip()]
    if len(rows) < 2 or not all(len(row) == 2 and row[1].strip() for row in rows):
        return None
    return [
        (value.strip(" ,.;\n"), _LED_BY.sub(" ", condition, count=1).strip(" ,.;\n"))
        for value, condition in rows
    ]
