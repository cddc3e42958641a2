r"""Statements and the algebra of sets, by truth tables.

Two statements are equal if the same rows of the table of their atoms hold. Bound letters have no
names, a quantified statement is an atom of the one around it, and `\exists` is `\lnot \forall
\lnot`, so De Morgan's laws need no rule.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any, Final, TypeAlias

from flowzoo.reward.math.tokens import MathToken, MathTokens, TokenCursor, tokenize
from flowzoo.reward.math.tree import AnswerSyntaxError
from flowzoo.reward.math.vocabulary import is_function

Tree: TypeAlias = tuple[Any, ...]
"""An operation and its operands: trees, or the bounds of an atom's tokens."""

# How tightly a sign binds, and its meaning for truth values; relations are between both.
_SIGNS: Final = {
    "Leftrightarrow": (0, "iff"), "leftrightarrow": (0, "iff"), "Rightarrow": (1, "if"),
    "rightarrow": (1, "if"), "lor": (2, "or"), "or": (2, "or"), "oplus": (2, "xor"),
    "xor": (2, "xor"), "land": (3, "and"), "and": (3, "and"), "cup": (5, "or"),
    "triangle": (5, "xor"), "Delta": (5, "xor"), "cap": (6, "and"), "setminus": (6, "minus"),
}  # fmt: skip
_RELATION: Final = 4
# Relations as another one, whose sides are exchanged or which is denied.
_RELATIONS: Final = {
    "=": ("=", False, False), "neq": ("=", False, True), "<": ("<", False, False),
    ">": ("<", True, False), "geq": ("<", False, True), "leq": ("<", True, True),
    "in": ("in", False, False), "notin": ("in", False, True), "|": ("|", False, False),
    "subset": ("subset", False, False), "subseteq": ("subseteq", False, False),
}  # fmt: skip
_QUANTIFIERS: Final = ("forall", "exists", "lambda")
_DENIALS: Final = ("lnot", "sim", "not")
_SEPARATORS: Final = (",", ":", ".", ";", "such that")
_COMPLEMENTS: Final = ("c", "complement", "prime")
_MOST_ATOMS: Final = 8
_MOST_BOUND: Final = 5  # letters, whose orders are tried


def statement_form(cleaned: str, is_stated: bool = False) -> str | None:
    """The normal form of a statement or of a formula of sets, or None.

    Relations that `and` or `or` only join are a list, as are names that words join, unless
    `is_stated`; then `A - B` is a difference, too.
    """
    source = tokenize(cleaned)
    if source is None or not source.tokens:
        return None
    reader = _Reader(source, is_stated)
    try:
        tree = reader.inside(len(source.tokens))
        return reader.form(tree, {}, 0) if reader.is_statement(tree) else None
    except (AnswerSyntaxError, RecursionError):
        return None


def builder_form(source: MathTokens) -> str | None:
    r"""The text of a set `\{a^n b^n : n \geq 0\}` whose bound letters have no names, or None."""
    tokens, end = source.tokens, len(source.tokens) - 1
    bar = next((idx for idx, token in enumerate(tokens) if token.text in ("|", ":")), 0)
    if tokens[0].text != "\\{" or source.partner[0] != end or not bar:
        return None
    bound: dict[str, str] = {}
    for token in tokens[bar + 1 : end]:
        if token.kind == "w" and len(token.text) == 1:
            bound.setdefault(token.text, f"#{len(bound)}")
        elif token.text != ",":
            break
    idle = _idle_braces(tokens, source.partner)
    texts = [_rename_bound(token, bound) for token in tokens]
    texts[bar] = "|"
    return " ".join(text for idx, text in enumerate(texts) if idx not in idle)


class _Reader(TokenCursor):
    """Reader of the tokens of a statement by precedence."""

    def __init__(self, source: MathTokens, is_stated: bool) -> None:
        super().__init__(source, 0, len(source.tokens))
        self.is_stated, self.count = is_stated, 0
        self.has_bar = sum(token.text == "|" for token in source.tokens) == 1
        self.idle = _idle_braces(source.tokens, source.partner)

    def next_text(self, ahead: int = 0) -> str:
        token = self.peek(ahead)
        if token is None:
            return ""
        return token.text.strip().lower() if token.kind in "wt" else token.text

    def inside(self, close_at: int) -> Tree:
        """The tree of the tokens from here to a bracket, which is skipped."""
        outer, self.end = self.end, close_at
        tree = self.read(0)
        if self.at < close_at:
            raise AnswerSyntaxError
        self.at, self.end = close_at + 1, outer
        return tree

    def sign(self) -> tuple[int, str]:
        """The rank and the meaning of the next token as a sign; rank -1 if it is none."""
        text = self.next_text()
        if text in _RELATIONS and (text != "|" or self.has_bar):
            return _RELATION, text
        if text == "-" and self.is_stated:
            return _SIGNS["setminus"]
        return _SIGNS.get(text, (-1, ""))

    def read(self, least: int) -> Tree:
        """An operand and what is joined to it by signs that bind at least as tightly."""
        tree = self.factor()
        last: Tree = ()
        while (sign := self.sign())[0] >= least:
            self.at += 1
            if sign[0] == _RELATION:  # a chain states all its relations
                right = self.read(_RELATION + 1)
                step = (sign[1], last or tree, right)
                tree, last = ("and", tree, step) if last else step, right
            else:
                tree = (sign[1], tree, self.read(sign[0] + (sign[1] != "if")))
        return tree

    def factor(self) -> Tree:
        text = self.next_text()
        if text in _QUANTIFIERS:
            return self.quantified()
        if text in _DENIALS or text == "overline":
            self.at += 1
            is_grouped = text == "overline" and self.accept("{")
            operand = self.inside(self.partner[self.at - 1]) if is_grouped else self.factor()
            if self.sign()[0] == _RELATION:
                self.at += 1
                operand = (self.tokens[self.at - 1].text, operand, self.read(_RELATION + 1))
            return "not", operand
        tree = self.bracket() or self.atom()
        while size := self.complement():
            self.at += size
            tree = ("not", tree)
        return tree

    def bracket(self) -> Tree | None:
        """A statement in brackets, unless they are part of an expression."""
        start, close = self.at, self.partner[self.at] if self.at < self.end else -1
        inside = [token.text for token in self.tokens[start:close]]
        is_tuple = "," in inside and not set(_QUANTIFIERS) & set(inside)
        if self.next_text() not in ("(", "[", "{") or close >= self.end or is_tuple:
            return None
        self.at = close + 1
        is_whole = self.is_over() or self.complement()
        self.at = start + bool(is_whole)
        return self.inside(close) if is_whole else None

    def is_over(self) -> bool:
        """True if no atom goes on here."""
        text = self.next_text()
        is_next = text in _QUANTIFIERS or text in _SEPARATORS
        return self.at >= self.end or self.sign()[0] >= 0 or is_next

    def complement(self) -> int:
        """Number of tokens of the mark of a complement that comes next; 0 without one."""
        if self.next_text() == "'":
            return 1
        group = 3 if self.next_text(1) == "{" else 1
        is_mark = self.next_text() == "^" and self.next_text(group - group // 2) in _COMPLEMENTS
        return (group + 1) * is_mark

    def atom(self) -> Tree:
        start = self.at
        while not self.is_over() and not (
            self.at - start == self.letter(start) and self.complement()
        ):
            self.at = max(self.partner[self.at], self.at) + 1
        if self.at == start:
            raise AnswerSyntaxError
        return "atom", start, self.at

    def letter(self, start: int) -> int:
        """Number of tokens of the letter at `start`, with its subscript; 0 for others."""
        if self.tokens[start].kind != "w" or len(self.tokens[start].text) != 1:
            return 0
        has_index = start + 2 < self.end and self.tokens[start + 1].text == "_"
        return max(self.partner[start + 2], start + 2) - start + 1 if has_index else 1

    def quantified(self) -> Tree:
        kind = self.next_text()
        self.at += 1
        names = self.letters()
        while self.next_text() == "," and self.next_text(2) in (",", ":", "in"):
            self.at += 1
            names += self.letters()
        domains: list[Tree] = []
        if self.sign()[0] == _RELATION:
            relation = self.next_text()
            self.at += 1
            within = self.read(_RELATION + 1)
            domains = [(relation, ("name", name), within) for name in names]
        is_apart = self.next_text() in _SEPARATORS
        if kind == "lambda" and self.next_text() != ".":  # the letter, not an abstraction
            raise AnswerSyntaxError
        self.at += is_apart
        body = self.read(0 if is_apart or self.next_text() not in ("(", "[") else _RELATION)
        for domain in domains:
            body = ("if" if kind == "forall" else "and", domain, body)
        if body[0] == kind:
            names, body = [*names, *body[1]], body[2]
        if not 0 < len(set(names)) == len(names) or self.count > _MOST_BOUND:
            raise AnswerSyntaxError
        return kind, names, body

    def letters(self) -> list[str]:
        """The bound letters that come next: a command, or each letter of a word."""
        token = self.tokens[min(self.at, self.end - 1)]
        names = {"c": [token.text], "w": list(token.text)}.get(token.kind, [])
        self.at, self.count = self.at + 1, self.count + len(names)
        return names

    def is_statement(self, tree: Tree) -> bool:
        """True unless another reader has to read it."""
        nodes = list(_nodes(tree))
        heads = {node[0] for node in nodes}
        if heads & set(_QUANTIFIERS):
            return True
        related = [node for node in nodes if node[0] in _RELATIONS]
        sides = [side for node in related for side in node[1:]]
        atoms = [node for node in nodes if node[0] == "atom"]
        if not all(self.is_plain(atom, atom in sides) for atom in atoms):
            return False
        signs = heads - {"atom", *_RELATIONS}
        is_list = len(atoms) == len(sides) and "in" not in heads and "notin" not in heads
        is_worded = not any(t.kind == "c" and t.text in (*_SIGNS, *_DENIALS) for t in self.tokens)
        is_named = is_worded and len(signs) < 2 and "xor" not in signs and not self.is_stated
        return bool(signs) and not is_named and not (is_list and signs <= {"and", "or"})

    def is_plain(self, atom: Tree, is_side: bool) -> bool:
        """True for a letter, the empty set, or a number beside a relation."""
        _, start, end = atom
        first = self.tokens[start]
        is_word = first.text == "varnothing" or (is_side and first.kind == "n")
        return end - start == (1 if is_word else self.letter(start))

    def form(self, tree: Tree, bound: Mapping[str, str], depth: int) -> str:
        """The atoms that matter, and the rows of their truth table that hold."""
        settled = self.settled(tree, bound, depth)
        atoms = sorted({node[1] for node in _nodes(settled) if node[0] == "key"})
        if len(atoms) > _MOST_ATOMS:
            raise AnswerSyntaxError
        rows = 2 ** len(atoms)
        columns = {a: sum(1 << r for r in range(rows) if r >> i & 1) for i, a in enumerate(atoms)}
        holds = _column(settled, columns, (1 << rows) - 1)
        table = [holds >> r & 1 for r in range(rows)]
        vital = [
            i for i in range(len(atoms)) if any(table[r] != table[r ^ 1 << i] for r in range(rows))
        ]
        true = {tuple(r >> i & 1 for i in vital) for r in range(rows) if table[r]}
        return f"{[atoms[i] for i in vital]} {sorted(true)}"

    def settled(self, tree: Tree, bound: Mapping[str, str], depth: int) -> Tree:
        """The tree with texts for atoms, relations and quantified parts."""
        head, *parts = tree
        if head == "name":
            return "key", bound[parts[0]]
        if head == "atom":
            text = self.text(parts[0], parts[1], bound)
            is_empty = text == "varnothing"
            return ("minus", ("key", text), ("key", text)) if is_empty else ("key", text)
        if head in _QUANTIFIERS:
            names, body = parts
            body = ("not", body) if head == "exists" else body
            places = [f"#{depth + idx}" for idx in range(len(names))]
            orders = [names] if head == "lambda" else permutations(names)
            letters = (dict(zip(order, places, strict=True)) for order in orders)
            forms = (self.form(body, {**bound, **new}, depth + len(names)) for new in letters)
            key = ("key", f"{'lambda' * (head == 'lambda')} {len(names)} {min(forms)}")
            return ("not", key) if head == "exists" else key
        if head in _RELATIONS:
            sign, is_turned, is_denied = _RELATIONS[head]
            sides = [self.form(side, bound, depth) for side in parts]
            sides = sorted(sides) if sign == "=" else sides[::-1] if is_turned else sides
            key = ("key", f"{sign} {sides}")
            return ("not", key) if is_denied else key
        return (head, *(self.settled(part, bound, depth) for part in parts))

    def text(self, start: int, end: int, bound: Mapping[str, str]) -> str:
        """The text of an atom, with its bound letters renamed."""
        places = (idx for idx in range(start, end) if idx not in self.idle)
        return " ".join(_rename_bound(self.tokens[idx], bound) for idx in places)


def _idle_braces(tokens: Sequence[MathToken], partner: Sequence[int]) -> set[int]:
    """The braces around one letter, number or command, which group nothing."""
    opened = [
        idx
        for idx, token in enumerate(tokens)
        if token.text == "{" and partner[idx] == idx + 2
        and (tokens[idx + 1].kind in "nc" or len(tokens[idx + 1].text) == 1)
    ]  # fmt: skip
    return {*opened, *(idx + 2 for idx in opened)}


def _rename_bound(token: MathToken, bound: Mapping[str, str]) -> str:
    if token.kind == "t":
        return " ".join(bound.get(word, word) for word in token.text.split())
    if token.text in bound or token.kind != "w" or is_function(token.text):
        return bound.get(token.text, token.text)
    return " ".join(bound.get(letter, letter) for letter in token.text)


def _nodes(tree: Tree) -> Iterator[Tree]:
    yield tree
    for part in tree[1:]:
        if isinstance(part, tuple):
            yield from _nodes(part)


def _column(tree: Tree, columns: Mapping[str, int], every: int) -> int:
    """The rows of the truth table in which a tree holds, as bits."""
    if tree[0] == "key":
        return columns[tree[1]]
    values = [_column(part, columns, every) for part in tree[1:]]
    left, right = values[0], values[-1]
    return {
        "not": every & ~left, "and": left & right, "or": left | right, "minus": left & ~right,
        "if": every & ~left | right, "xor": left ^ right, "iff": every & ~(left ^ right),
    }[tree[0]]  # fmt: skip
