r"""LaTeX as plain text, as the published grader reads it: `\frac{1}{2}` is `1/2`.

Written anew from what latex2text of pylatexenc 2.10 returns. Braces, comments and the names of
unknown commands vanish; arguments of these stay.
"""

import re
import unicodedata
from typing import Final, NamedTuple

from flowzoo.reward.listed import names

_TOKEN = re.compile(
    r"\\(?P<edge>begin|end)\s*\{(?P<environment>[\w* ._-]+)\}"
    r"|\\(?P<command>[^\W\d_]+)[^\S\n]*(?:\n[^\S\n]*(?!\n))?|\\(?P<symbol>.?)"
    r"|[{}&~]|---?|``|''|[!?]`",
    re.DOTALL,
)
_SPACE = re.compile(r"\s*")
_OPTIONAL = re.compile(r"\s*\[([^\[\]]*\])?")
_DEEPEST = 100

SYMBOLS: Final = dict(
    pair.split("=")
    for pair in names("""
    hbar=ħ ell=ℓ forall=∀ complement=∁ partial=∂ exists=∃ nexists=∄ varnothing=∅ emptyset=∅
    nabla=∇ in=∈ notin=∉ ni=∋ prod=∏ coprod=∐ sum=∑ setminus=∖ smallsetminus=∖ ast=∗ circ=∘
    bullet=∙ propto=∝ infty=∞ parallel=∥ nparallel=∦ wedge=∧ vee=∨ cap=∩ cup=∪ int=∫ iint=∬
    iiint=∭ oint=∮ sim=∼ simeq=≃ approx=≈ neq=≠ equiv=≡ le=≤ ge=≥ leq=≤ geq=≥ leqslant=⩽
    geqslant=⩾ leqq=≦ geqq=≧ ll=≪ gg=≫ nless=≮ ngtr=≯ nleq=≰ ngeq=≱ lesssim=≲ gtrsim=≳ prec=≺
    succ=≻ preceq=≼ succeq=≽ subset=⊂ supset=⊃ subseteq=⊆ supseteq=⊇ nsubseteq=⊈ nsupseteq=⊉
    subsetneq=⊊ supsetneq=⊋ cdot=· times=× otimes=⊗ oplus=⊕ prime=' pm=± mp=∓ ldots=… cdots=⋯
    ddots=⋱ vdots=⋮ dots=… dotsc=… dotsb=… dotsm=… dotsi=… dotso=… langle=⟨ rangle=⟩ lvert=|
    rvert=| vert=| lVert=‖ rVert=‖ Vert=‖ mid=| nmid=∤ uparrow=↑ downarrow=↓ rightarrow=→ to=→
    leftarrow=← longrightarrow=⟶ longleftarrow=⟵ mapsto=↦ leftrightarrow=↔ Rightarrow=⇒
    Leftarrow=⇐ Leftrightarrow=⇔ Longrightarrow=⟹ Longleftrightarrow=⟺ angle=∠ therefore=∴
    because=∵ cong=≅ perp=⊥ top=⊤ lceil=⌈ rceil=⌉ lfloor=⌊ rfloor=⌋ square=□ triangleq=≜
    bigcap=⋂ bigcup=⋃ bigwedge=⋀ bigvee=⋁ star=⋆ diamond=♢ lnot=¬ div=÷ surd=√ odot=⊙ ominus=⊖
    dag=† dagger=† aleph=ℵ lbrace={ rbrace=} textdegree=° textpm=± mho=℧ i=ı j=ȷ o=ø l=ł
    epsilon=ϵ phi=ϕ varepsilon=ε vartheta=ϑ varpi=ϖ varrho=ϱ varsigma=ς varphi=φ
    """)
)  # fmt: skip
SYMBOLS.update({"backslash": "\\", "quad": " ", "qquad": "    ", "enskip": "\u2002"})
SYMBOLS.update(dict.fromkeys(" ,;:", " ") | {name: name for name in "~&${}%#_"})
SYMBOLS.update({"\\": "\n", "begin": "\\begin", "end": "\\end"})
SYMBOLS.update({"-": "\xad", "limsup": "lim sup", "liminf": "lim inf"})
for _name in (
    "cos", "sin", "tan", "arccos", "arcsin", "arctan", "cosh", "sinh", "tanh", "arccosh",
    "arcsinh", "arctanh", "ln", "log", "exp", "max", "min", "sup", "inf", "lim",
):  # fmt: skip
    SYMBOLS[_name] = _name
for _name in (
    "alpha", "beta", "gamma", "delta", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu",
    "nu", "xi", "omicron", "pi", "rho", "sigma", "tau", "upsilon", "chi", "psi", "omega",
    "epsilon", "phi",
):  # fmt: skip
    _letter = "LAMDA" if _name == "lambda" else _name.upper()
    SYMBOLS.setdefault(_name, unicodedata.lookup(f"GREEK SMALL LETTER {_letter}"))
    SYMBOLS[_name.capitalize()] = unicodedata.lookup(f"GREEK CAPITAL LETTER {_letter}")
_SPECIALS: Final = {
    "&": "   ", "~": "\xa0", "--": "–", "---": "—", "``": "“", "''": "”", "!`": "¡", "?`": "¿",
}  # fmt: skip
_TEMPLATES: Final = {"frac": "%s/%s", "nicefrac": "%s/%s"} | dict.fromkeys(
    names("""
    overline underline widehat widetilde wideparen overleftarrow overrightarrow overleftrightarrow
    underleftarrow underrightarrow underleftrightarrow overbrace underbrace
    """),
    "%s",
)
"""Texts of commands with their arguments, and without any."""
_TEXTS = dict.fromkeys(names("emph textrm textit textbf textsc textsl text mathrm"), "%s")
_WITH_ARGUMENTS: Final = _TEMPLATES | _TEXTS | {"sqrt": "√(%s)"}
_DROPPED = names(
    """
    mbox textmd textsf texttt textup label ensuremath hspace hphantom vphantom color xleftarrow
    xrightarrow title author date keywords input include
    """
)
"""Commands that vanish with their argument."""
_MATRICES = ("array", "pmatrix", "bmatrix", "smallmatrix")
_BLOCKS = ("equation", "eqnarray", "align", "multline", "gather")
_FONTS: Final = {
    "mathbb": "DOUBLE-STRUCK", "mathbf": "BOLD", "mathit": "ITALIC", "mathsf": "SANS-SERIF",
    "mathtt": "MONOSPACE", "mathcal": "SCRIPT", "mathscr": "SCRIPT", "mathfrak": "FRAKTUR",
}  # fmt: skip
_ACCENTS: Final = {
    "'": "\u0301", "acute": "\u0301", "`": "\u0300", "grave": "\u0300", '"': "\u0308",
    "ddot": "\u0308", "^": "\u0302", "hat": "\u0302", "tilde": "\u0303", "=": "\u0304",
    ".": "\u0307", "dot": "\u0307", "breve": "\u0306", "check": "\u030c", "not": "\u0338",
    "vec": "\u20d7", "bar": "\u0305", "~": "\u0303", "c": "\u0327", "H": "\u030b", "k": "\u0328",
    "b": "\u0331", "d": "\u0323", "r": "\u030a", "u": "\u0306", "v": "\u030c",
}  # fmt: skip


class UnreadableError(ValueError):
    """LaTeX that cannot be read: a root of nothing, or too deep or unclosed groups."""


def plain_text(latex: str) -> str:
    """The text of `latex`.

    Raises:
        UnreadableError: no text is defined.
    """
    return "".join(item.text for item in _Reader(latex).items(""))


class _Item(NamedTuple):
    text: str
    token: str


class _Reader:
    """Reads from one place of a text on."""

    def __init__(self, latex: str) -> None:
        self.latex, self.at, self.depth = latex, 0, 0

    def items(self, end: str) -> list[_Item]:
        """The items up to the token `end`, or to the end of the text."""
        items: list[_Item] = []
        self.depth += 1
        if self.depth > _DEEPEST:
            raise UnreadableError
        while (mark := _TOKEN.search(self.latex, self.at)) is not None:
            self.chars(mark.start(), items)
            self.at, token = mark.end(), mark[0]
            if mark["edge"]:
                token = f"\\{mark['edge']}{{{mark['environment']}}}"
            if token == end:
                break
            items.append(_Item(self.text(mark), token))
        else:
            self.chars(len(self.latex), items)
            self.at = len(self.latex)
        self.depth -= 1
        return items

    def chars(self, end: int, items: list[_Item]) -> None:
        """Add what stands before `end`."""
        if end > self.at:
            items.append(_Item(self.latex[self.at : end], ""))

    def joined(self, end: str) -> str:
        return "".join(item.text for item in self.items(end))

    def text(self, mark: re.Match[str]) -> str:
        """The text of a token, which has been read, and of what belongs to it."""
        if mark["edge"]:
            return self.environment(mark["environment"]) if mark["edge"] == "begin" else ""
        name = mark["command"] or mark["symbol"]
        if name is not None:
            return self.command(name)
        if mark[0] == "{":
            return self.joined("}")
        return _SPECIALS.get(mark[0], "")

    def environment(self, name: str) -> str:
        end = f"\\end{{{name}}}"
        if name == "array":
            self.argument()
        if name not in _MATRICES:
            content = self.joined(end)
            return f"\n{content.strip()}\n" if name.rstrip("*") in _BLOCKS else content
        rows: list[list[list[str]]] = [[[]]]
        for item in self.items(end):
            if item.token == "&":
                rows[-1].append([])
            elif item.token == "\\\\":
                rows.append([[]])
            else:
                rows[-1][-1].append(item.text)
        cells = [["".join(cell).strip() for cell in row if cell] for row in rows]
        return f"[ {'; '.join(' '.join(row) for row in cells)} ]"

    def command(self, name: str) -> str:
        if name in ("(", "["):
            content = self.joined("\\)" if name == "(" else "\\]").strip()
            return content if name == "(" else f"\n{content}\n"
        if name == "\\" or name in _DROPPED:
            self.at += self.latex.startswith("*", self.at)
            self.skip_optional()
        elif name == "sqrt":
            self.skip_optional()
        start = self.at
        count = 2 if name in ("frac", "nicefrac") else 1
        if name in _DROPPED or name in _FONTS or name in _ACCENTS or name in _WITH_ARGUMENTS:
            arguments = [self.argument() for _ in range(count)]
            if None not in arguments:
                return _fill_command(name, [text for text in arguments if text is not None])
            self.at = start
        return _bare(name)

    def skip_optional(self) -> None:
        mark = _OPTIONAL.match(self.latex, self.at)
        if mark and not mark[1]:
            raise UnreadableError
        self.at = mark.end() if mark else self.at

    def argument(self) -> str | None:
        """The text of a group, a command without arguments or a character; None: nothing left."""
        mark = _SPACE.match(self.latex, self.at)
        assert mark is not None
        self.at = mark.end()
        token = _TOKEN.match(self.latex, self.at)
        char = self.latex[self.at : self.at + 1]
        if not char:
            return None
        if char in "{}":
            self.at += 1
            return self.joined("}") if char == "{" else ""
        if token and char == "\\":
            self.at = token.end()
            return _bare(token["command"] or token["symbol"] or "")
        self.at = token.end() if token else self.at + 1
        return _SPECIALS.get(token[0], char) if token else char


def _bare(name: str) -> str:
    """The text of a command without its arguments."""
    if name == "sqrt":
        raise UnreadableError
    if name in _ACCENTS:
        return f" {_ACCENTS[name]}"
    return SYMBOLS.get(name) or _TEMPLATES.get(name, "")


def _fill_command(name: str, arguments: list[str]) -> str:
    if name in _DROPPED:
        return ""
    if name in _FONTS:
        return "".join(_style_letter(char, _FONTS[name]) for char in arguments[0])
    if name in _ACCENTS:
        plain = arguments[0].strip().replace("ı", "i").replace("ȷ", "j")
        return "".join(unicodedata.normalize("NFC", char + _ACCENTS[name]) for char in plain)
    return _WITH_ARGUMENTS[name] % tuple(arguments)


def _style_letter(char: str, font: str) -> str:
    """A letter in a mathematical font; Unicode had some of them before it had the fonts."""
    if not (char.isascii() and char.isalpha()):
        return char
    case = "CAPITAL" if char.isupper() else "SMALL"
    older = "BLACK-LETTER" if font == "FRAKTUR" else font
    written = (f"MATHEMATICAL {font} {case} {char.upper()}", f"{older} {case} {char.upper()}")
    for name in (*written, "PLANCK CONSTANT"):
        try:
            return unicodedata.lookup(name)
        except KeyError:
            continue
    return char
