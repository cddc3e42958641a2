"""docs/episode.svg: a recorded episode of voting that plays in a page, without scripts.

    flowzoo eval voting --policy pocket --n 40 --out FOLDER
    python docs/film.py FOLDER/episodes.jsonl

The first episode of the evaluation is kept in `docs/data/episode.json`. It plays three times and
stays at its end; readers who ask for reduced motion see the end alone. Its letters are large enough
for a phone, its colors follow the reader's scheme.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from flowzoo.envs.render import printable

DOCS = Path(__file__).resolve().parents[1]
DATA, PICTURE = DOCS / "data" / "episode.json", DOCS / "episode.svg"
COMMAND = (
    "flowzoo eval voting --policy pocket --n 40 --out FOLDER; "
    "python docs/film.py FOLDER/episodes.jsonl"
)

WIDTH, CARD, GAP, EDGE = 400, 62, 10, 14
LETTER = 9.0
"""Width of a letter of a reply, which is set in a font of fixed width."""
LONGEST = 27
"""Letters of a reply that fit beside what was read."""
WORD, PAUSE, HOLD = 0.3, 0.9, 4.0
"""Seconds for a word, between phases, and at the end."""

ORDINALS = ("first", "second", "third")

STYLE = """
svg{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
.page{fill:#fff;stroke:#d4d4d8}.card{fill:#f4f4f5}.ink{fill:#18181b}.soft{fill:#52525b}
.reply{font:15px ui-monospace,Menlo,"DejaVu Sans Mono",monospace;fill:#18181b}
.g{fill:#0e7490}.a{fill:#a21caf}.good{fill:#15803d}.bad{fill:#b91c1c}
.wire{fill:none;stroke:#71717a;stroke-width:2}.tip{fill:#71717a}.sum{fill:#dcfce7}
@media (prefers-color-scheme:dark){
.page{fill:#18181b;stroke:#3f3f46}.card{fill:#27272a}.ink,.reply{fill:#f4f4f5}.soft{fill:#a1a1aa}
.g{fill:#56c4d6}.a{fill:#d67ed6}.good{fill:#4ade80}.bad{fill:#f87171}.sum{fill:#14351f}}
"""


def slim(record: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a record of `episodes.jsonl` that the film shows, with the command."""
    calls = [
        {name: call[name] for name in ("agent", "role", "phase", "reply", "role_score", "reward")}
        for call in record["calls"]
    ]
    names = ("workflow", "text", "answer", "gold", "score", "facts")
    return {"command": COMMAND, **{name: record[name] for name in names}, "calls": calls}


class Film:
    """An SVG whose moving parts appear one after the other."""

    def __init__(self) -> None:
        self.now = 0.4
        self.times: list[float] = []
        self.parts: list[str] = []

    def still(self, markup: str) -> None:
        """A part that is there from the beginning."""
        self.parts.append(markup)

    def add(self, markup: str, at: float | None = None) -> None:
        """A part that appears at second `at`, or now."""
        time = round(self.now if at is None else at, 2)
        if time not in self.times:
            self.times.append(time)
        self.parts.append(f'<g class="t{self.times.index(time)}">{markup}</g>')

    def style(self) -> str:
        """The rules of all parts."""
        total = self.now + HOLD
        rules = []
        for number, time in enumerate(self.times):
            share = 100 * time / total
            rules.append(
                f"@keyframes k{number}{{0%,{share:.2f}%{{opacity:0}}"
                f"{share + 1.5:.2f}%,100%{{opacity:1}}}}"
                f".t{number}{{animation:k{number} {total:.1f}s linear 3 both}}"
            )
        still = "@media (prefers-reduced-motion:reduce){g{animation:none!important}}"
        return STYLE + "\n".join([*rules, still])


def label(x: float, y: float, kind: str, size: int, text: str, anchor: str = "start") -> str:
    """A line of text."""
    return (
        f'<text x="{x:g}" y="{y:g}" class="{kind}" font-size="{size}" font-weight="600" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


def panel(y: float, height: int, kind: str) -> str:
    """A rounded box over the width of the picture."""
    return (
        f'<rect x="{EDGE}" y="{y:g}" width="{WIDTH - 2 * EDGE}" height="{height}" rx="8" '
        f'class="{kind}"/>'
    )


def card(film: Film, call: Mapping[str, Any], y: float, note: str, start: float) -> float:
    """A call whose reply appears word by word; the second at which it ends."""
    reply = printable(call["reply"])
    if len(reply) > LONGEST:
        raise ValueError(f"expected replies of at most {LONGEST} letters, got {reply!r}")
    left, color = EDGE + 12, "g" if call["phase"] == 0 else "a"
    film.still(panel(y, CARD, "card") + label(left, y + 24, color, 14, call["agent"]))
    time, place = start, 0
    for word in reply.split(" "):
        x = left + LETTER * place
        film.add(f'<text x="{x:g}" y="{y + 48:g}" class="reply">{escape(word)}</text>', time)
        time, place = time + WORD, place + len(word) + 1
    right = call["role_score"] == 1
    mark = f"{note} {'✓' if right else '✗'}"
    film.add(label(WIDTH - left, y + 24, "good" if right else "bad", 14, mark, "end"), time)
    return time


def generators(film: Film, calls: Sequence[Mapping[str, Any]], y: float) -> float:
    """The cards of the calls that are made at the same time; the place below them."""
    film.still(label(EDGE, y + 16, "soft", 14, "Three generators answer on their own"))
    y += 28
    ends = []
    for call in calls:
        _, _, box = call["reply"].rpartition("\\boxed{")
        ends.append(card(film, call, y, f"answer {printable(box.rstrip('}'))}", film.now + 0.5))
        y += CARD + GAP
    film.now = max(ends) + PAUSE
    return y


def wires(count: int, y: float) -> str:
    """Lines from the `count` cards above the caption above `y` to the card at `y`."""
    first = y - 30 - count * (CARD + GAP) + CARD / 2
    edge, middle = WIDTH - EDGE, y + CARD / 2
    path = "".join(f"M{edge} {first + number * (CARD + GAP):g}h7" for number in range(count))
    path += f"M{edge + 7} {first:g}V{middle:g}h-3"
    tip = f"M{edge} {middle:g}l6 -5v10z"
    return f'<path d="{path}" class="wire"/><path d="{tip}" class="tip"/>'


def film(episode: Mapping[str, Any]) -> str:
    """The picture, an SVG document."""
    reel = Film()
    title = f"{episode['workflow']}: one recorded episode"
    head = label(EDGE, 30, "soft", 14, title)
    head += label(EDGE, 62, "ink", 21, printable(episode["text"]))
    *first, last = episode["calls"]
    y = generators(reel, first, 80.0)
    reel.still(label(EDGE, y + 18, "soft", 14, "An aggregator reads them and picks one"))
    y += 30
    reel.add(wires(len(first), y))
    pick = f"picks the {ORDINALS[episode['facts']['chosen']]}"
    reel.now = card(reel, last, y, pick, reel.now + 0.5) + PAUSE
    y += CARD + GAP
    kind, word = ("good", "right") if episode["score"] == 1 else ("bad", "wrong")
    paid = f"Answer {episode['answer']} is {word}: each agent earns {last['reward']:g}"
    reel.add(panel(y, 44, "sum") + label(WIDTH / 2, y + 28, kind, 16, paid, "middle"))
    height = y + 44 + EDGE
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
            f'width="{WIDTH}" height="{height:g}" role="img"><title>{escape(title)}</title>',
            f"<style>{reel.style()}</style>",
            f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1:g}" rx="10" '
            f'class="page"/>{head}',
            *reel.parts,
            "</svg>\n",
        ]
    )


def write(episodes: Path | None = None) -> None:
    """Write the picture, and its data from the first episode of `episodes`."""
    if episodes is not None:
        with episodes.open(encoding="utf-8") as lines:
            episode = slim(json.loads(next(lines)))
        DATA.write_text(json.dumps(episode, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PICTURE.write_text(film(json.loads(DATA.read_text(encoding="utf-8"))), encoding="utf-8")
