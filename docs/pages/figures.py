"""Measured figures in the documentation: where they come from, and whether they still agree.

    python docs/figures.py            # write them into README.md and docs/
    python docs/figures.py --check    # say what differs; exit status 1

`docs/data` holds them, with the command that measured each. A table or a block of output stands
between `<!-- figures: NAME -->` and `<!-- end of NAME -->` and is written from `NAME.json`, or, as
`bench/NAME`, from the bench of that name in `bench.json`. A figure in a sentence is held by
`sentences.json`: the words around it, and its value, or `@TABLE/ROW/COLUMN` for a cell of a table.
`limits.json` lists where numbers are no measurements (limits, defaults, definitions), with the
reason. Any other number with a unit is reported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "docs" / "data"
NUMBER = r"[-+−]?\d(?:[\d,.]*\d)?"
UNIT = (
    r"(?:%|×(?! ?\d)|(?:[mµ]?s|[MG]i?B|(?:CPU[- ])?(?:seconds?|minutes?|hours?)|points?|times)\b)"
)
AND = r"(?:,| to| and|–|, and)\s*"
FIGURE = re.compile(rf"(?<![\w.,`])(?!95 %)({NUMBER}(?:{AND}{NUMBER})*)\s?{UNIT}")
"""Numbers with a unit; 95 % is the level of every interval."""
HEADING = re.compile(r"^#+ .*$", re.MULTILINE)
BLOCK = re.compile(
    r"(?P<head><!-- figures: (?P<name>\S+) -->\n)(?P<body>.*?)(?P<foot><!-- end of (?P=name) -->)",
    re.DOTALL,
)
FENCE = re.compile(r"^(```|~~~).*?^\1$", re.MULTILINE | re.DOTALL)


class FigureError(ValueError):
    """The data and a page cannot be brought together; the message says which and where."""


def pages() -> list[Path]:
    """The pages whose figures are held."""
    return [
        ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
        *sorted((ROOT / "docs" / "measured").glob("*.md")),
    ]  # fmt: skip


def load(name: str) -> Any:
    """A file of `docs/data`."""
    path = DATA / f"{name}.json"
    if not path.is_file():
        raise FigureError(f"docs/data/{name}.json does not exist, and a page asks for it")
    return json.loads(path.read_text(encoding="utf-8"))


def name_of(page: Path) -> str:
    """A page as the data name it."""
    return page.relative_to(ROOT).as_posix()


# -- tables ---------------------------------------------------------------------------------------


def rendered(name: str) -> str:
    """The text between the marks of `name`."""
    kind, _, rest = name.partition("/")
    if kind == "bench":
        return f"{bench_table(bench_rows(rest))}\n\n{circumstances(rest)}"
    if kind == "exponents":
        return exponents(rest)
    data = load(name)
    if "lines" in data:
        return "\n".join(["```text", *data["lines"], "```"])
    return table(data["columns"], data["rows"], data.get("align"))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], align: str | None = None) -> str:
    """A table in Markdown."""
    head = f"| {' | '.join(columns)} |"
    return "\n".join(
        [head, align or "|---" * len(columns) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    )


def bench_rows(name: str) -> list[Mapping[str, Any]]:
    """The rows of a bench with contenders; none if it was not measured."""
    bench = load("bench")["benches"].get(name, {"rows": []})
    return [row for row in bench["rows"] if "contenders" in row]


def circumstances(name: str) -> str:
    """A line about the measurement of a bench."""
    bench = load("bench")["benches"].get(name)
    if bench is None:
        return f"Not measured yet: `python -m benchmarks.speed {name} --out docs/data/bench.json`."
    share = "" if bench["scale"] == 1 else f", {bench['scale']:g} of the usual work"
    busy = bench["others_during"]
    quiet = busy is None or busy <= QUIET
    others = "" if quiet else f"; others used {busy:g} of {bench['machine']['cores']} cores"
    return f"`{name}`: {bench['rounds']} rounds{share}{others}."


QUIET = 0.05
"""Cores in use by others that a page does not mention."""
WALL_APART = 0.15
"""Relative difference of wall time and CPU time from which a table has both."""


def bench_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """All races of a benchmark as one table: microseconds per unit, and ratios to the first."""
    units = {row["unit"] for row in rows}
    wall = any(
        abs(times["wall_us"]["median"] / times["cpu_us"]["median"] - 1) > WALL_APART
        for row in rows
        for times in row["contenders"].values()
    )
    clocks = ("cpu", "wall") if wall else ("cpu",)
    unit = f"per {units.pop()}" if len(units) == 1 else "per unit"
    columns = [""]
    for clock in clocks:
        columns += [f"{'CPU' if clock == 'cpu' else 'wall'}, µs {unit}", "ratio"]
    lines = []
    for row in rows:
        case = row["case"] if len(row["contenders"]) > 1 or len(rows) > 1 else ""
        for name, times in row["contenders"].items():
            label = [case] if case else []
            label += [name] if len(row["contenders"]) > 1 else []
            cells = [": ".join(label)]
            for clock in clocks:
                cells += [shown(times[f"{clock}_us"]["median"]), span(times.get(f"{clock}_ratio"))]
            lines.append(cells)
            case = ""
        blanks = [""] * (len(columns) - 2)
        lines += [[name, why, *blanks] for name, why in row.get("absent", {}).items()]
    return table(columns, lines, f"|---|{'--:|' * (len(columns) - 1)}")


def span(values: Mapping[str, float] | None) -> str:
    """A median with its quartiles, for a cell."""
    if values is None:
        return ""
    return f"{shown(values['median'])} ({shown(values['low'])}–{shown(values['high'])})"


def exponents(name: str) -> str:
    """The exponents that were fitted to the curves of a bench."""
    rows = [
        [row["case"], row["what"], f"{row['expected']:g}", span(row["exponent"])]
        for row in bench_rows(name)
    ]
    text = table(["curve", "size", "expected", "fitted (range)"], rows, "|---|---|--:|--:|")
    return f"{text}\n\n{circumstances(name)}"


def shown(value: float) -> str:
    """Three digits."""
    if value >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.{max(0, 2 - len(str(int(abs(value)))) + 1)}f}"


# -- sentences ------------------------------------------------------------------------------------


def sentences(page: str) -> Iterator[tuple[re.Pattern[str], str, list[str]]]:
    """Pattern, words and values of every sentence that the data hold of a page."""
    for part in load("sentences").get(page, []):
        for entry in part["figures"]:
            pieces = [r"\s+".join(map(re.escape, p.split(" "))) for p in entry["says"].split("{}")]
            pattern = re.compile(f"({NUMBER})".join(pieces))
            yield pattern, entry["says"], [value_of(value) for value in entry["values"]]


def value_of(value: str) -> str:
    """The value, or the number in the cell that it names."""
    if not value.startswith("@"):
        return value
    name, row, column = value[1:].split("/")
    data = load(name)
    cell = data["rows"][int(row)][data["columns"].index(column)]
    number = re.search(NUMBER, cell)
    if number is None:
        raise FigureError(f"{value}: the cell {cell!r} holds no number")
    return number[0].lstrip("+")


def filled(page: str, text: str) -> tuple[str, list[tuple[int, int]]]:
    """A page with every figure as the data have it, and the places of those in sentences.

    Raises:
        FigureError: a sentence is not there once, or has other numbers of figures than values.
    """

    def block(match: re.Match[str]) -> str:
        return f"{match['head']}{rendered(match['name'])}\n{match['foot']}"

    text = BLOCK.sub(block, text)
    for pattern, sentence, values in sentences(page):
        matches = list(pattern.finditer(text))
        if len(matches) != 1 or len(values) != pattern.groups:
            fault = f"found {len(matches)} times" if len(matches) != 1 else "has other values"
            raise FigureError(
                f"{page}: {sentence!r} {fault}; mend docs/data/sentences.json, or the page"
            )
        for number in range(pattern.groups, 0, -1):
            start, end = matches[0].span(number)
            text = text[:start] + values[number - 1] + text[end:]
    places = [
        match.span(number)
        for pattern, _, _ in sentences(page)
        for match in pattern.finditer(text)
        for number in range(1, pattern.groups + 1)
    ]
    return text, places


def unheld(page: str, text: str) -> list[str]:
    """Figures of a page that nothing holds, with their lines."""
    text, places = filled(page, text)
    held = [*places, *(match.span() for match in BLOCK.finditer(text))]
    held += [match.span() for kind in (FENCE, HEADING) for match in kind.finditer(text)]
    allowed = load("limits").get(page, {})
    if "*" in allowed:
        return []
    sections = headings(text)
    figures = []
    for match in FIGURE.finditer(text):
        start = match.start(1)
        if any(low <= start < high for low, high in held):
            continue
        if section_at(sections, start) not in allowed and not in_words(text, match, allowed):
            line = text[: match.start()].count("\n") + 1
            figures.append(f"{page}:{line}: {' '.join(match[0].split())}")
    return figures


def headings(text: str) -> list[tuple[int, str]]:
    """Place and path of every heading outside of blocks, "section > part", without the title."""
    path: list[str] = []
    sections = []
    blank = FENCE.sub(lambda match: " " * len(match[0]), text)
    for match in re.finditer(r"^(#+) (.*)$", blank, re.M):
        path[len(match[1]) - 1 :] = [match[2]]
        sections.append((match.start(), " > ".join(path[1:])))
    return sections


def section_at(sections: Sequence[tuple[int, str]], position: int) -> str:
    """The path of the heading above."""
    return next((name for start, name in reversed(sections) if start <= position), "")


def in_words(text: str, match: re.Match[str], allowed: Mapping[str, str]) -> bool:
    """True if the figure is part of words that are listed as no measurement."""
    near = " ".join(text[max(0, match.start() - 100) : match.end() + 100].split())
    return any(len(phrase) > 8 and match[1] in phrase and phrase in near for phrase in allowed)


# -- all of it ------------------------------------------------------------------------------------


def problems(write: bool) -> list[str]:
    """List the differences of pages and data; with `write`, write the data into the pages."""
    messages: list[str] = []
    for page in pages():
        name, text = name_of(page), page.read_text(encoding="utf-8")
        try:
            mended, _ = filled(name, text)
            messages += unheld(name, text)
        except FigureError as error:
            messages.append(str(error))
            continue
        if mended != text:
            if write:
                page.write_text(mended, encoding="utf-8")
            else:
                messages.append(f"{name}: figures differ from docs/data; run docs/figures.py")
    return messages
