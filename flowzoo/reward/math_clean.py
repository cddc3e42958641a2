r"""Normal forms of LaTeX and plain answers: one pass over the commands, then small rewrites.

`clean` keeps what a number or a container needs (spaces, brackets, commas); `text_form` goes on to
the form in which texts and expressions are compared as strings; `unit_form` reads what follows
a number.
"""

from __future__ import annotations

import re


def _table(pairs: str) -> dict[str, str]:
    """A mapping from `key:value` pairs separated by white space; a bare key maps to itself."""
    split = (pair.partition(":") for pair in pairs.split())
    return {key: value or key for key, _, value in split}


_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)", re.DOTALL)
_DROPPED = _table(
    "left right mleft mright big Big bigl bigr Bigl Bigr displaystyle limits ! ( ) [ ]"
)
_RENAMED = _table(
    "dfrac:frac tfrac:frac cfrac:frac le:leq ge:geq ne:neq leqslant:leq geqslant:geq "
    "lbrace:{ rbrace:} to:rightarrow"
)
_LITERAL = _table("$ % # & _ cdot:* times:* degree:° textdollar:$ lvert:| rvert:| gt:> lt:<")
_COMMANDS: dict[str, str] = {
    **{f"\\{name}": f"\\{other}" for name, other in _RENAMED.items()},
    **{f"\\{name}": other for name, other in _LITERAL.items()},
    **{f"\\{name}": "" for name in _DROPPED},
    **{f"\\{name}": " " for name in ("quad", "qquad", "enspace", "thinspace", *",;: \n")},
}
_SIGNS = "π:pi ∞:infty ≤:leq ≥:geq ≠:neq ∪:cup ∩:cap ∈:in"
_CHARACTERS = str.maketrans(
    {
        **_table("−:- –:- ×:* ·:*"),
        # The space ends the command, whatever character follows.
        **{sign: f"\\{name} " for sign, name in _table(_SIGNS).items()},
        **dict.fromkeys("\u00a0\u2009\u202f~", " "),
    }
)
_SPECIAL = re.compile(r"[\\~\u0080-\uffff]")
_DEGREES = re.compile(r"\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})")
_TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mbox|rm|bf)\s*\{([^{}]*)\}"
)
_WRAPPED = re.compile(r"\\(?:boxed|fbox)\s*\{(.*)\}", re.DOTALL)
_SPACE_RUN = re.compile(r"\s+")
_LOOSE_SPACE = re.compile(r"(?<!\d) | (?!\d)")
_LOOSE_STAR = re.compile(r"\*(?!\d)")
_SINGLE_BRACES = re.compile(r"([\^_])\{([^{}\\])\}")
_BARE_ROOT = re.compile(r"\\sqrt\s*(\w)")
_BARE_FRAC = re.compile(r"\\frac\s*(\d)\s*(\d)")
_WORDS = re.compile(r"[A-Za-z][A-Za-z '-]*", re.ASCII)
_UNIT = re.compile(r"\s*([A-Za-z°$€£¥.][A-Za-z°./ -]*)(?:\^\s*\{?([23])\}?)?", re.ASCII)
_SHORT_UNITS = _table("mm cm dm km mg kg ml cl ft in yd mi oz lb lbs hr hrs min sec pm am of a")
_NO_UNITS = _table(
    "pi sin cos tan cot sec csc log exp sqrt mod and but not nor plus minus times over squared "
    "cubed factorial choose divided is wrong incorrect false to by if than less more base inf "
    "infinity half halves third thirds quarter quarters root cube remainder or approximately "
    "hundred thousand million billion trillion dozen percent fold negative"
)
_UNIT_NAMES = _table(
    "centimeter:cm centimetre:cm millimeter:mm millimetre:mm kilometer:km kilometre:km meter:m "
    "metre:m kilogram:kg kilo:kg gram:g foot:ft feet:ft inch:in inche:in °:degree deg:degree "
    "$:dollar buck:dollar usd:dollar hr:hour min:minute €:euro £:pound ¥:yen p.m.:pm a.m.:am"
)
_VARIABLES = re.compile(r"[abcxyzpqr]{3}")


def clean(text: str) -> str:
    r"""`text` without delimiters, sizing commands and spacing commands; text commands stay.

    An outer box, `$...$`, `**...**` and a final full stop are dropped.
    """
    text = _unwrap(text.strip())
    if _SPECIAL.search(text):
        text = _COMMAND.sub(lambda match: _COMMANDS.get(match[0], match[0]), text)
        text = _DEGREES.sub("°", text.translate(_CHARACTERS))
        whole = _TEXT.fullmatch(text)
        if whole:
            text = whole[1]
    text = text.replace("{,}", ",").replace("$ ", "$")
    return _SPACE_RUN.sub(" ", text).strip()


def _unwrap(text: str) -> str:
    """Drop what wraps the whole of `text`, at most four layers of it."""
    for _ in range(4):
        before = text
        if text.endswith(".") and not text.endswith("m."):
            text = text[:-1].rstrip()
        for mark in ("$$", "$", "**"):
            if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
                if mark in text[len(mark) : -len(mark)].replace("\\$", ""):
                    continue
                text = text[len(mark) : -len(mark)].strip()
        box = _WRAPPED.fullmatch(text)
        if box and "\\boxed" not in box[1] and "\\fbox" not in box[1]:
            text = box[1].strip()
        if text == before:
            break
    return text


def text_form(text: str) -> str:
    """The form of a clean text in which it is compared as a string.

    Spaces go unless they stand between digits; words and single letters lose their case.
    """
    text = _TEXT.sub(r"\1", text).replace("$", "").replace("**", "^")
    text = _BARE_FRAC.sub(r"\\frac{\1}{\2}", _BARE_ROOT.sub(r"\\sqrt{\1}", text))
    text = _SPACE_RUN.sub(" ", text).strip()
    if _WORDS.fullmatch(text):
        return text.casefold() if len(text) > 1 or text in "ABCDEFGH" else text
    text = _LOOSE_SPACE.sub("", text)
    text = _SINGLE_BRACES.sub(r"\1\2", _LOOSE_STAR.sub("", text))
    return text


def unit_form(rest: str) -> str | None:
    r"""The unit that `rest`, the text after a number, names, or None if it is no unit.

    A bare word must be set off by a space and be no mathematical word (`2 pi`, `3 squared`), nor so
    short that it could be variables (`2ab`); inside `\text{...}` any word will do.
    """
    plain = _TEXT.sub(r" \1", rest)
    match = _UNIT.fullmatch(plain.rstrip())
    if match is None:
        return None
    name = match[1].strip(" -").lower()
    words = name.split()
    if len(words) > 4 or any(word in _NO_UNITS for word in words):
        return None
    is_typeset = plain != rest or name in "°$€£¥"
    if not is_typeset and not (rest[0] in " °-" and all(map(_is_word, words))):
        return None
    if name.endswith("s") and len(name) > 2:
        name = name[:-1]
    name = _UNIT_NAMES.get(name, name)
    return f"{name}^{match[2]}" if match[2] else name


def _is_word(word: str) -> bool:
    """Whether a bare word can be (part of) a unit rather than a product of variables."""
    if len(word) < 3:
        return word in _SHORT_UNITS
    return _VARIABLES.fullmatch(word) is None
