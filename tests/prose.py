"""Finds prose that docs/style.md rules out, in docstrings, comments and names of a Python file."""

import ast
import builtins
import io
import re
import tokenize
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

FIRST_WORDS = frozenset(
    {
        "how", "it", "its", "nobody", "nothing", "of", "that", "there", "they", "those", "what",
        "where", "whether", "which", "who", "whoever",
    }
)  # fmt: skip
"""A docstring names the thing or starts with a verb; it begins with none of these."""
LOCALS = frozenset(
    {
        "asked", "coming", "found", "gone", "kept", "known", "made", "meant", "mine", "one", "ours",
        "own", "place", "ready_made", "said", "shown", "taken", "theirs", "told", "wanted", "words",
    }
)  # fmt: skip
"""Variables and parameters that do not say what they hold."""
FUNCTIONS = frozenset(
    {
        "above", "after", "all", "any", "at", "before", "behind", "below", "beneath", "beside",
        "between", "beyond", "by", "each", "from", "in", "into", "it", "like", "near", "none", "of",
        "on", "one", "ones", "other", "others", "over", "own", "since", "that", "this", "those",
        "through", "to", "under", "until", "what", "which", "who", "with", "within", "without",
        "begun", "born", "bound", "broken", "built", "came", "done", "drawn", "driven", "found",
        "given", "gone", "held", "hidden", "kept", "known", "laid", "left", "lost", "made", "met",
        "paid", "ran", "said", "seen", "sent", "shown", "sold", "spent", "taken", "taught",
        "thought", "told", "won", "written",
    }
)  # fmt: skip
"""A function is named by a verb or by what it returns, and not by one of these alone."""
PARTICIPLE = re.compile(r"(?!exceed|proceed|speed|succeed)[a-z]{3,}ed")
PHRASES = re.compile(
    r"\b(whoever|whatever|somebody|nobody|meanwhile|(?:comes?|came|coming) to (?!an end)"
    r"|what (?:it|they) (?:is|are|was|were)|so many(?:-th)?|as said|stands? (?:in|for|at|on|there)"
    r"|stood|so it is|(?:is|are) told|of (?:its|their|one's) own|those (?:that|of)|hears?)\b",
    re.IGNORECASE,
)
"""Turns of phrase for which there is a plain word."""
BRITISH = re.compile(
    r"\b(\w*(?:optimis|normalis|initialis|serialis|quantis|recognis|generalis|summaris|organis"
    r"|minimis|maximis|synchronis|tokenis|vectoris|parallelis|randomis|penalis|specialis|localis"
    r"|utilis|visualis|categoris|prioritis|memoris)\w*"
    r"|colours?|coloured|licences?|behaviours?|favours?|neighbours?|centres?|grey|labelled"
    r"|labelling|unlabelled|modelling|judgements?|judgement|programme|catalogue|cheque|defence"
    r"|artefacts?|learnt|spelt|burnt|whilst|amongst)\b",
    re.IGNORECASE,
)
"""British spellings; the project writes American English."""
_BACKTICKS = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)(?:\(\))?`(?!`)")


class Finding(NamedTuple):
    """A place that breaks a rule."""

    rule: str
    line: int
    text: str


def findings(path: Path, identifiers: Collection[str]) -> Iterator[Finding]:
    """Breaches of the rules of a file.

    Args:
        path: a Python file.
        identifiers: every name that exists in the project, for names in backticks.
    """
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    for text, line in docstrings(tree):
        first = re.match(r"[A-Za-z']+", text.strip())
        if first and first.group().lower() in FIRST_WORDS:
            yield Finding("first word", line, first.group())
        for match in _BACKTICKS.finditer(text):
            if any(part not in identifiers for part in match.group(1).split(".")):
                yield Finding("stale name", line, match.group(1))
        yield from _prose(text, line)
    for text, line in comments(source):
        yield from _prose(text, line)
    for name, line in local_names(tree):
        if name in LOCALS:
            yield Finding("local", line, name)
    for name, line in function_names(tree):
        if name.strip("_") in FUNCTIONS or PARTICIPLE.fullmatch(name.strip("_")):
            yield Finding("function", line, name)


def _prose(text: str, line: int) -> Iterator[Finding]:
    for match in PHRASES.finditer(text):
        yield Finding("phrase", line, match.group())
    for match in BRITISH.finditer(text):
        yield Finding("spelling", line, match.group())


def docstrings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Docstrings of modules, classes, functions and attributes, with their lines."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                yield statement.value.value, statement.lineno


def comments(source: str) -> Iterator[tuple[str, int]]:
    """Comments, with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string, token.start[0]


def local_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Variables and parameters, with the lines of their assignment."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


def function_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Functions and methods with their lines; properties are not among them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not any(
            "property" in ast.unparse(decorator) for decorator in node.decorator_list
        ):
            yield node.name, node.lineno


@cache
def project_identifiers(root: Path) -> frozenset[str]:
    """Every name, attribute, keyword and short string in the project's code, and its files."""
    names = set(dir(builtins))
    for folder in ("flowzoo", "tests", "benchmarks", "tools", "studies", "examples"):
        for path in (root / folder).rglob("*"):
            names.add(path.name)
            names.update(path.name.split("."))
            if path.suffix == ".py":
                names.update(_identifiers(path.read_text(encoding="utf-8")))
            elif path.suffix in {".toml", ".js", ".json"} and path.stat().st_size < 1e6:
                names.update(re.findall(r"[A-Za-z_]\w*", path.read_text(encoding="utf-8")))
    return frozenset(names)


def _identifiers(source: str) -> Iterator[str]:
    """Names in code, with the words of its strings that are no docstrings."""
    tree = ast.parse(source)
    documented = {line for _, line in docstrings(tree)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield token.string
        elif token.start[0] in documented:
            continue
        elif token.type in {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}:
            yield from re.findall(r"[A-Za-z_]\w*", token.string)
