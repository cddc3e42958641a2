r"""Answers in words, as the formulas that they say: `no more than 5` is `(-\infty ,5]`.

`lexicon.toml` holds a grammar whose rules pair a phrase with a template, as `cube root of {number}`
with `\sqrt[3]{$0}`. An answer is read as a whole or not at all: a word that no rule has, or words
that no rule joins, leave it to the other readers.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from flowzoo.reward.math.clean import TEXT_COMMANDS
from flowzoo.reward.math.lists import JOINTS
from flowzoo.reward.math.units import size_of, unit_name
from flowzoo.reward.math.vocabulary import (
    HEDGED,
    is_function,
    is_name,
    number_in_words,
    ordinal_in_words,
)

_LONGEST: Final = 240
_MOST_TOKENS: Final = 40
_MOST_UNKNOWN: Final = 4
_TEXT = re.compile(
    rf"\\(?:{'|'.join(sorted(TEXT_COMMANDS - {'mathbb', 'mathcal', 'operatorname'}))})\s?"
    r"\{([^{}\\]*)\}"
)
_REMAINDER = re.compile(r"(?<=[\d)])\s*R\s*(?=[\d(])")
_CONTRACTED = re.compile(r"n['’]t\b")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_LEXEME = re.compile(
    r"(?P<space>\s+)|(?P<command>\\[A-Za-z]+ ?|\\.)|(?P<word>[A-Za-z]+)|(?P<mark>[,;](?!\d))"
    r"|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<other>.)",
    re.DOTALL,
)
_HYPHEN = re.compile(
    r"(?<=[A-Za-z])-(?=[A-Za-z]{2})|(?<=[A-Za-z]{3})-(?=[A-Za-z\d])|(?<=\d)-(?=[a-z]{3})"
)
_ELEMENT = re.compile(r"\{(\w+)\}|([^\s(){}|]+)|([()|])")
_SLOT = re.compile(r"([$#])(-?\d)(?:\[(\d)\])?")
_ATOMIC = re.compile(r"[A-Za-z]|\d+(?:\.\d+)?(?:\\?%)?|\\[A-Za-z]+ ?")
_RELATION = re.compile(r"[<>=]|\\(?:leq|geq|neq|in|equiv|approx)(?![A-Za-z])")
_LEAVES: Final = {
    "cond": re.compile(r".*(?:[<>=]|\\(?:leq|geq|neq|in|equiv)(?![A-Za-z])).*", re.DOTALL),
    "bracketed": re.compile(r"[(\[\]].*,.*[)\]\[]|\\\{.*\\\}|.*\\cup .*|\([^,]*\)", re.DOTALL),
    "open": re.compile(r"[(\]].*,.*[)\[]", re.DOTALL),
    "closed": re.compile(r"\[.*,.*\]", re.DOTALL),
    "half_open": re.compile(r"[(\]].*,.*\]|\[.*,.*[)\[]", re.DOTALL),
    "name": re.compile(
        r"(?:[A-Za-z]|\\(?:lambda|theta|alpha|beta|mu|sigma|phi|omega) ?)"
        r"(?:_ ?\{?\w\}?)?'?(?: ?\([a-z]\))?"
    ),
    "index": re.compile(r"[a-dijkmnpq]"),
    "whole": re.compile(r"\d{1,15}"),
    "digits": re.compile(r"\d{1,15}"),
    "approximation": re.compile(r"-?(?:\d*\.\d+|\d{3,}).*"),
    "clock_time": re.compile(r"\d\d? ?: ?\d\d"),
}  # fmt: skip
_NUMERALS: Final = ("number", "whole", "digits")
_INEQUALITY = re.compile(r"(?<![\\A-Za-z])([a-z])(?![A-Za-z])")


class _Rule(NamedTuple):
    """A phrase of a category: words and categories in order, and the template of its formula."""

    parts: tuple[str, ...]  # a category in braces, or a word
    template: str
    literals: frozenset[str]


class _Lexicon(NamedTuple):
    rules: dict[str, list[_Rule]]
    literals: frozenset[str]


class _Token(NamedTuple):
    text: str
    is_word: bool


def phrase_form(cleaned: str) -> str | None:
    """The formula that a clean answer in words says, or None."""
    if len(cleaned) > _LONGEST or not ("R" in cleaned or _WORD.search(cleaned)):
        return None
    return _phrase_form(cleaned)


@lru_cache(maxsize=4_096)
def _phrase_form(cleaned: str) -> str | None:
    lexicon = _lexicon()
    plain = _REMAINDER.sub(" remainder ", _TEXT.sub(r" \1 ", cleaned).replace("$", " "))
    plain = _HYPHEN.sub(" ", _CONTRACTED.sub(" not", plain))
    tokens = _tokens(plain, lexicon.literals)
    spoken = [t.text for t in tokens if t.is_word and t.text.isalpha() and t.text not in JOINTS]
    unknown = sum(word not in lexicon.literals for word in spoken)
    numbers = sum((number_in_words(word) or ordinal_in_words(word)) is not None for word in spoken)
    if unknown - numbers == len(spoken) or unknown > _MOST_UNKNOWN or len(tokens) > _MOST_TOKENS:
        return None
    return _Reader(tokens, lexicon).read("answer", 0, len(tokens))


@lru_cache(maxsize=1)
def _lexicon() -> _Lexicon:
    tables = tomllib.loads(Path(__file__).with_name("lexicon.toml").read_text(encoding="utf-8"))
    for stem, (holds, fails) in tables.pop("opposites").items():
        forms = {holds: stem, fails: f"non{stem}"}
        for phrases, form in forms.items():
            denied = f"non{stem}" if form == stem else stem
            if phrases:
                tables["property"][f"({phrases})"] = rf"\text{{{form}}}"
                tables["property"][f"{{not}} ({phrases})"] = rf"\text{{{denied}}}"
    rules = {
        name: [
            _Rule(parts, template, frozenset(part for part in parts if part[0] != "{"))
            for pattern, template in table.items()
            for parts in _expand(pattern)
        ]
        for name, table in tables.items()
    }
    literals = {word for table in rules.values() for rule in table for word in rule.literals}
    return _Lexicon(rules, frozenset(word for word in literals if word.isalpha() and len(word) > 1))


def _expand(pattern: str) -> list[tuple[str, ...]]:
    # The sequences of a pattern: `a (b|) c` is `a b c` and `a c`.
    stack: list[list[list[tuple[str, ...]]]] = [[[()]]]
    for category, word, mark in _ELEMENT.findall(pattern):
        if mark == "(":
            stack.append([[()]])
        elif mark == "|":
            stack[-1].append([()])
        else:
            if mark == ")":
                chosen = [way for ways in stack.pop() for way in ways]
            else:
                chosen = [(f"{{{category}}}" if category else word,)]
            stack[-1][-1] = [a + b for a, b in product(stack[-1][-1], chosen)]
    return [way for ways in stack[0] for way in ways if way]


def _tokens(plain: str, literals: frozenset[str]) -> list[_Token]:
    # Words, marks and the formulas between them; `<` and `>` are round brackets with words in them.
    tokens: list[_Token] = []
    depth, wordy, written = 0, 0, ""
    for match in _LEXEME.finditer(plain):
        kind, text, mark = match.lastgroup, match[0], ""
        if kind == "open" or text == "\\{":
            inside = _WORD.findall(plain[match.end() : plain.find(")", match.start())])
            has_words = any(x.lower() in literals and not is_function(x) for x in inside)
            if text == "(" and depth == 0 and has_words:
                mark, wordy = "<", wordy + 1
            else:
                depth += 1
        elif kind == "close" or text == "\\}":
            if text == ")" and depth == 0 and wordy:
                mark, wordy = ">", wordy - 1
            else:
                depth = max(depth - 1, 0)
        elif depth == 0 and (
            kind == "mark" or (kind == "word" and _is_word(plain, match, literals))
        ):
            mark = text.lower()
        if mark:
            tokens += [*_formula(written), _Token(mark, True)]
        written = "" if mark else written + text
    return [*tokens, *_formula(written)]


def _formula(written: str) -> list[_Token]:
    # A formula, and the colons at its ends.
    text = written.strip().rstrip(".")
    after = ":" * (len(text) > 1 and text.endswith(":"))
    parts = (":" * text.startswith(":"), text.strip(": "), after)
    return [_Token(part, part == ":") for part in parts if part]


def _is_word(plain: str, match: re.Match[str], literals: frozenset[str]) -> bool:
    word = match[0]
    before, after = plain[match.start() - 1 : match.start()], plain[match.end() : match.end() + 1]
    if len(word) == 1 or is_function(word) or is_name(word) or after in ("_", "^", "\\"):
        return False
    if before.isdigit() or before in ("_", "^"):
        return len(word) > 4 and word.lower() in literals
    return word.lower() in literals or number_in_words(word) is not None or len(word) > 2


class _Reader:
    """Reader of the tokens of one answer by the rules whose words it has."""

    def __init__(self, tokens: Sequence[_Token], lexicon: _Lexicon) -> None:
        self.tokens, self.literals = tokens, lexicon.literals
        texts = {token.text.lower() for token in tokens}
        self.rules = {
            name: [rule for rule in table if rule.literals <= texts]
            for name, table in lexicon.rules.items()
        }
        self.read_before: dict[tuple[str, int, int], str | None] = {}

    def read(self, category: str, start: int, end: int) -> str | None:
        """The formula of a slice as a phrase of `category`; empty for words that say nothing."""
        key = (category, start, end)
        if key not in self.read_before:
            self.read_before[key] = None  # while it is read, it is no part of itself
            self.read_before[key] = self.read_anew(category, start, end)
        return self.read_before[key]

    def read_anew(self, category: str, start: int, end: int) -> str | None:
        if (leaf := self.leaf(category, start, end)) is not None:
            return leaf
        for rule in self.rules.get(category, ()):
            if len(rule.parts) <= end - start:
                for parts in self.matches(rule.parts, 0, start, end):
                    return _fill(rule.template, [part for part in parts if part])
        return None

    def matches(self, parts: tuple[str, ...], at: int, start: int, end: int) -> Iterator[list[str]]:
        """The formulas of the categories of `parts[at:]`, for each way to split the slice."""
        if at == len(parts):
            if start == end:
                yield []
            return
        part, left = parts[at], len(parts) - at - 1
        if part[0] != "{":
            if start < end and self.tokens[start].text.lower() == part:
                yield from self.matches(parts, at + 1, start + 1, end)
            return
        stops = range(end - left, start, -1) if left else [end]
        for stop in stops:
            if stop > start and (form := self.read(part[1:-1], start, stop)) is not None:
                for rest in self.matches(parts, at + 1, stop, end):
                    yield [form, *rest]

    def leaf(self, category: str, start: int, end: int) -> str | None:
        """The formula of a slice that needs no rule."""
        tokens = self.tokens[start:end]
        text = " ".join(token.text for token in tokens)
        if category in ("noun", "thing"):
            is_unit = category == "thing" and size_of(unit_name(text)) is not None
            return None if is_unit or not self.is_noun(tokens) else text
        if category == "words":
            return text if self.is_plain(tokens) else None
        if category == "named_":
            is_noun = self.read("noun_", start, end) is not None
            is_name = is_noun or (len(tokens) == 1 and self.is_plain(tokens))
            return text if is_name and self.read("it", start, end) is None else None
        if category == "ordinal":
            number = ordinal_in_words(text.replace(" ", "-"))
            return None if number is None else str(number)
        if category in _NUMERALS and (spelled := _read_number(tokens, category == "number")):
            return spelled
        if len(tokens) > 1 or tokens[0].is_word:
            return None
        if category == "number":
            is_other = _RELATION.search(text) or _LEAVES["bracketed"].fullmatch(text)
            return None if is_other or not any(map(str.isalnum, text)) else text
        if category == "inequality":
            letters = set(_INEQUALITY.findall(text))
            is_one = len(letters) == 1 and _LEAVES["cond"].fullmatch(text)
            return rf"\{{{min(letters)}|{text}\}}" if is_one else None
        pattern = _LEAVES.get(category)
        return text if pattern is not None and pattern.fullmatch(text) else None

    def is_noun(self, tokens: Sequence[_Token]) -> bool:
        """True for a few words that no rule has."""
        is_new = all(token.text not in self.literals for token in tokens)
        return is_new and self.is_plain(tokens)

    def is_plain(self, tokens: Sequence[_Token]) -> bool:
        """True for a few words that neither count, deny nor doubt."""
        are_words = all(token.is_word and token.text.isalpha() for token in tokens)
        text = " ".join(token.text for token in tokens)
        return are_words and len(tokens) < _MOST_UNKNOWN and HEDGED.search(text) is None


def _read_number(tokens: Sequence[_Token], is_product: bool) -> str | None:
    # The number of `twenty five`, also before a letter or a command, as in `four \\pi`.
    *before, last = tokens
    value = number_in_words(" ".join(token.text for token in tokens))
    if value is not None:
        return str(value)
    is_letter = last.text[0] == "\\" or last.text[0].islower()
    if not (before and is_product and is_letter) or last.is_word:
        return None
    value = number_in_words(" ".join(token.text for token in before))
    return None if value is None else f"{value} {last.text}"


def _fill(template: str, parts: Sequence[str]) -> str:
    def part(match: re.Match[str]) -> str:
        text = parts[int(match[2])]
        if match[3]:
            text = text.strip("()[]").split(",")[int(match[3])].strip()
        is_open = match[1] == "#" and _ATOMIC.fullmatch(text) is None
        return f"({text})" if is_open else text

    return _SLOT.sub(part, template)
