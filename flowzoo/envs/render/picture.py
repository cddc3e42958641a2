"""The transcript as a picture, for `render_mode="rgb_array"`."""

from __future__ import annotations

import textwrap
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.render.transcript import COLORS, SHORT, facts_line, printable, remarks, verdict
from flowzoo.errors import need_module
from flowzoo.extras import is_installed

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

# Pixels of a picture: even, as video codecs want them, and the same for every episode.
WIDTH, HEIGHT = 960, 720
MARGIN, SIZE, LEADING = 16, 14, 18  # pixels around the text; of a letter; from line to line

NEEDED = ("matplotlib", "PIL")  # modules that draw; the first has the font

RGB = {
    "plain": (212, 212, 212),
    "dim": (128, 128, 128),
    "ground": (24, 24, 27),
    "cyan": (86, 196, 214),
    "magenta": (214, 126, 214),
    "yellow": (222, 196, 96),
    "green": (120, 204, 120),
    "blue": (120, 160, 240),
    "red": (236, 110, 110),
}


class TextLine(NamedTuple):
    """A line of a picture: its text, and the name of its color in `RGB`."""

    text: str
    color: str


def can_draw() -> bool:
    """Return whether what draws pictures is installed."""
    return all(is_installed(module) for module in NEEDED)


@lru_cache(maxsize=1)
def picture_font() -> FreeTypeFont:
    """The font of all pictures."""
    for module in NEEDED:
        need_module(module, 'render_mode="rgb_array"')
    from PIL import ImageFont

    # A font that matplotlib ships: the same picture on every machine, boards in line, and letters
    # for mathematics, Greek and Cyrillic.
    matplotlib = find_spec("matplotlib")
    assert matplotlib is not None
    assert matplotlib.origin is not None
    folder = Path(matplotlib.origin).parent / "mpl-data" / "fonts" / "ttf"
    return ImageFont.truetype(str(folder / "DejaVuSansMono.ttf"), SIZE)


def to_array(episode: Episode) -> np.ndarray:
    """The newest lines of the transcript: uint8 of shape (HEIGHT, WIDTH, 3), red, green, blue."""
    font = picture_font()
    from PIL import Image, ImageDraw

    columns = int((WIDTH - 2 * MARGIN) / font.getlength("M"))
    rows = (HEIGHT - 2 * MARGIN) // LEADING
    head, *body = [part for line in picture_lines(episode) for part in fold(line, columns)]
    visible_lines = [head, *body[-(rows - 1) :]]
    picture = Image.new("RGB", (WIDTH, HEIGHT), RGB["ground"])
    draw: Any = ImageDraw.Draw(picture)
    for row, (text, color) in enumerate(visible_lines):
        draw.text((MARGIN, MARGIN + row * LEADING), text, RGB[color], font)
    return np.array(picture)


def picture_lines(episode: Episode) -> list[TextLine]:
    """The transcript so far, in lines of any length."""
    roles = list(episode.workflow.role_counts())
    lines = [TextLine(f"{episode.workflow.name} · {episode.problem.id}", "dim")]
    lines += _all(printable(episode.problem.text), "plain")
    for turn in episode.turns:
        if turn.slot == 0 and turn.phase > 0:
            lines += _remarks(episode, turn.phase - 1)
        role = episode.workflow.agents[turn.agent][0]
        lines.append(TextLine("", "plain"))
        lines.append(TextLine(turn.agent, COLORS[roles.index(role) % len(COLORS)]))
        lines += _all(printable(turn.said), "plain", "  ") if turn.reply else [_WAITING]
    if episode.done:
        if episode.turns:
            lines += _remarks(episode, episode.turns[-1].phase)
        color = "green" if (episode.finished().score or 0.0) > 0 else "red"
        lines += [TextLine("", "plain"), *_all(verdict(episode), color)]
        lines += _all(printable(facts_line(episode)), "dim")
    return lines


_WAITING = TextLine("  …", "dim")


def _all(text: str, color: str, indent: str = "") -> list[TextLine]:
    return [TextLine(indent + line, color) for line in text.split("\n")]


def _remarks(episode: Episode, phase: int) -> list[TextLine]:
    return [TextLine(f"  {printable(line, SHORT)}", "dim") for line in remarks(episode, phase)]


def fold(line: TextLine, columns: int) -> list[TextLine]:
    """A line in pieces of at most `columns` characters, its spaces kept."""
    text = line.text.expandtabs(4)
    if len(text) <= columns:
        return [TextLine(text, line.color)]
    pieces = textwrap.wrap(text, columns, drop_whitespace=False, replace_whitespace=False)
    return [TextLine(piece, line.color) for piece in pieces]
