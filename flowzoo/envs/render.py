"""Rendering of transcripts: text (`ansi`), colored text (`human`), images (`rgb_array`)."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.episode.recording import answered_turns, episode_rewards
from flowzoo.envs.episode.turn import Turn
from flowzoo.envs.script import (
    Judge,
    JudgeResult,
    Reply,
    Run,
    RunResult,
    Search,
    SearchResult,
    ToolResult,
    UseTool,
)
from flowzoo.errors import need_module
from flowzoo.extras import is_installed

if TYPE_CHECKING:
    import numpy as np
    from PIL.ImageFont import FreeTypeFont
    from rich.console import Console
    from rich.text import Text

    from flowzoo.envs.tasks.task import Scene


def drawn(scene: Scene) -> Text:
    """A scene as text with styles, indented."""
    from rich.text import Text

    return Text("\n").join(Text("  ").append_tokens(row) for row in scene)


def print_moved(episode: Episode, before: list[Reply], reply: Reply, out: Console) -> None:
    """Draw the effect of `reply` on the world, if any."""
    workflow, problem = episode.workflow, episode.problem
    then, now = workflow.world(before), workflow.world([*before, reply])
    scene = None if now is None or now == then else workflow.task.scene(problem, now)
    if scene is not None:
        out.print(drawn(scene))


def remarks(episode: Episode, phase: int) -> list[str]:
    """Lines about the programs, searches and verdicts that followed the replies of `phase`."""
    # Without runs on tests: some of them are ground truth.
    turns = [turn for turn in episode.turns if turn.phase == phase]
    later = [turn.logged for turn in episode.turns if turn.phase == phase + 1]
    start = turns[0].logged + len(turns)
    before = sum(not isinstance(entry, str) for entry in episode.log[:start])
    results = episode.log[start : later[0] if later else None]
    effects = episode.requested[before : before + len(results)]
    lines: list[str] = []
    for effect, result in zip(effects, results, strict=True):
        if isinstance(effect, Search) and isinstance(result, SearchResult):
            lines += [f"found: {passage.text}" for passage in result.passages] or ["nothing found"]
        elif isinstance(effect, Run) and isinstance(result, RunResult) and not effect.tests:
            lines.append(of_program(result))
        elif isinstance(effect, UseTool) and isinstance(result, ToolResult):
            lines.append(f"{effect.call.name}: {result.text}")
        elif isinstance(effect, Judge) and isinstance(result, JudgeResult):
            verdict = "unreadable" if result.score is None else f"{result.score:.3g}"
            lines.append(f"judge on {effect.of.agent}, {effect.name or effect.question}: {verdict}")
    return lines


def _indent(lines: Iterable[str]) -> list[str]:
    return [f"  {printable(line, SHORT)}" for line in lines]


def of_program(ran: RunResult) -> str:
    """Output or failure of a program that was run once."""
    output = " ".join(ran.output.split())
    if ran.status == "AC":
        return f"the program printed: {output}" if output else "the program printed nothing"
    detail = ran.cases[0].detail if ran.cases else ""
    return f"the program failed: {ran.status}{', ' if detail else ''}{' '.join(detail.split())}"


COLORS = ("cyan", "magenta", "yellow", "green", "blue", "red")
LONGEST = 2_000  # characters shown of a text; the middle of a longer one is replaced by a note
SHORT = 200  # characters of an answer or a remark of one line
_PLAIN = 60  # characters of a reading that is repeated below its reply
NARROW = 80  # characters of a verdict on one line; a longer one is split at its parts


def printable(text: str, most: int = LONGEST) -> str:
    """`text` without control characters, the middle of a long one left out."""
    if len(text) > most:
        half = most // 2
        text = f"{text[:half]} […{len(text) - 2 * half} characters…] {text[-half:]}"
    return "".join(
        char if char in "\n\t" or char.isprintable() else f"\\u{ord(char):04x}" for char in text
    )


def verdict(episode: Episode) -> str:
    """Summary of a finished episode: one line, or more if it would be long."""
    settled = episode_rewards(episode)
    answer, *_, payoffs = episode.finished()
    score = f"score {settled.score:g}"
    if payoffs is not None:  # of every agent its own, and nothing is right or wrong
        paid = ", ".join(f"{agent} {pay:g}" for agent, pay in payoffs.returns.items())
        parts = [score, f"pay: {paid}"]
    else:
        first = "no answer" if answer is None else _with_name("answer", answer)
        if episode.truncated:
            first = "cut off by max_cycles"
        parts = [first, _with_name("gold", episode.problem.gold), score]
    line = "; ".join(parts)
    return "\n".join(parts) if "\n" in line or len(line) > NARROW else line


def facts_line(episode: Episode) -> str:
    """The workflow's facts about a finished episode, in one line."""
    facts = episode.finished().facts
    values = {k: f"{v:.3g}" if isinstance(v, float) else str(v) for k, v in facts.items()}
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _with_name(name: str, text: str) -> str:
    # `name text`, or the text below its name if it has several lines.
    several = "\n" in text
    text = printable(text, LONGEST if several else SHORT)
    return f"{name}:\n{text}" if several else f"{name} {text}"


def to_ansi(episode: Episode) -> str:
    """The transcript as plain text: prompts and replies by agent."""
    lines = [f"{episode.workflow.name} · {episode.problem.id}", printable(episode.problem.text)]
    for turn in episode.turns:
        lines.append(f"--- {turn.agent} (phase {turn.phase}, turn {turn.turn})")
        lines += [f"{m['role']}: {printable(m['content'])}" for m in turn.messages]
        lines.append(f"> {printable(turn.said) if turn.reply else '…'}")
    if episode.done:
        lines.append(f"=== {verdict(episode)}")
    return "\n".join(lines)


def print_new(
    episode: Episode, printed: int, console: Console | None = None, prompts: bool = False
) -> int:
    """Print the answered turns from number `printed` on, and the verdict once done."""
    from rich.console import Console
    from rich.text import Text

    out = console or Console()
    turns = answered_turns(episode)
    if printed == 0:
        out.rule(Text(f"{episode.workflow.name} · {episode.problem.id}"))
        scene = episode.workflow.task.scene(episode.problem)
        text = Text(printable(episode.problem.text), style="bold")
        out.print(text if scene is None else drawn(scene))
        printed = 1
    for turn, reply in turns[printed - 1 :]:
        if turn.slot == 0 and turn.phase > 0:
            _print_lines(_indent(remarks(episode, turn.phase - 1)), "dim italic", out)
        _print_turn(episode, turn, reply, out, prompts)
        print_moved(episode, [earlier for _, earlier in turns[: printed - 1]], reply, out)
        printed += 1
    if episode.done and printed == len(turns) + 1:
        if episode.turns:
            _print_lines(_indent(remarks(episode, episode.turns[-1].phase)), "dim italic", out)
        _print_lines([verdict(episode)], f"bold {end_color(episode)}", out)
        if episode.finished().facts:
            _print_lines([printable(facts_line(episode))], "dim", out)
        printed += 1
    return printed


def end_color(episode: Episode) -> str:
    """Color of the verdict on a finished episode; a custom reward does not change it."""
    return "green" if (episode.finished().score or 0.0) > 0 else "red"


def role_color(episode: Episode, agent: str) -> str:
    """Color of an agent's role."""
    role = episode.workflow.agents[agent][0]
    return COLORS[list(episode.workflow.role_counts()).index(role) % len(COLORS)]


def _print_lines(lines: Iterable[str], style: str, out: Console) -> None:
    from rich.text import Text

    for line in lines:
        out.print(Text(line, style=style))


def _print_turn(episode: Episode, turn: Turn, reply: Reply, out: Console, prompts: bool) -> None:
    from rich.panel import Panel
    from rich.text import Text

    color = role_color(episode, turn.agent)
    if prompts:
        chat = (f"{m['role']}: {printable(m['content'])}" for m in turn.messages)
        _print_lines(chat, "dim", out)
    out.print(
        Panel(
            Text(printable(turn.said)),
            title=Text(turn.agent, style=f"bold {color}"),
            subtitle=Text(_reading(reply), style="dim"),
            title_align="left",
            subtitle_align="right",
            border_style=color,
        )
    )


def _reading(reply: Reply) -> str:
    value = reply.strict
    if value is None:
        return "unreadable"
    if isinstance(value, bool):
        return f"read as {'yes' if value else 'no'}"
    text = str(value)
    if len(text) > _PLAIN or "\n" in text:
        return "" if text in reply.text else f"read as {len(text)} characters"
    lines = [line.strip() for line in reply.text.splitlines()]
    return "" if text in lines else f"read as {printable(text)}"


# Pixels of a picture: even numbers, for video codecs, and the same for every episode.
WIDTH, HEIGHT = 960, 720
MARGIN, SIZE, LEADING = 16, 14, 18  # pixels of the margin; of a letter; of the line height

NEEDED = ("matplotlib", "PIL")  # modules for drawing; the first has the font

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
    """True if the drawing libraries are installed."""
    return all(is_installed(module) for module in NEEDED)


@lru_cache(maxsize=1)
def picture_font() -> FreeTypeFont:
    """The font of all pictures."""
    for module in NEEDED:
        need_module(module, 'render_mode="rgb_array"')
    from PIL import ImageFont

    # matplotlib's bundled monospaced font: the same picture on every machine, aligned boards, and
    # mathematical, Greek and Cyrillic letters.
    matplotlib = find_spec("matplotlib")
    assert matplotlib is not None
    assert matplotlib.origin is not None
    folder = Path(matplotlib.origin).parent / "mpl-data" / "fonts" / "ttf"
    return ImageFont.truetype(str(folder / "DejaVuSansMono.ttf"), SIZE)


def to_array(episode: Episode) -> np.ndarray:
    """The newest lines of the transcript: uint8 of shape (HEIGHT, WIDTH, 3), red, green, blue."""
    font = picture_font()
    import numpy as np
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
    """Lines of the transcript so far, of any length."""
    lines: list[TextLine] = []

    def add(text: str, color: str, indent: str = "") -> None:
        lines.extend(TextLine(indent + line, color) for line in text.split("\n"))

    add(f"{episode.workflow.name} · {episode.problem.id}", "dim")
    add(printable(episode.problem.text), "plain")
    for turn in episode.turns:
        if turn.slot == 0 and turn.phase > 0:
            lines += [TextLine(x, "dim") for x in _indent(remarks(episode, turn.phase - 1))]
        add("", "plain")
        add(turn.agent, role_color(episode, turn.agent))
        add(printable(turn.said) if turn.reply else "…", "plain" if turn.reply else "dim", "  ")
    if episode.done:
        if episode.turns:
            lines += [
                TextLine(x, "dim") for x in _indent(remarks(episode, episode.turns[-1].phase))
            ]
        add("", "plain")
        add(verdict(episode), end_color(episode))
        add(printable(facts_line(episode)), "dim")
    return lines


def fold(line: TextLine, columns: int) -> list[TextLine]:
    """Split a line into pieces of at most `columns` characters, spaces included."""
    text = line.text.expandtabs(4)
    if len(text) <= columns:
        return [TextLine(text, line.color)]
    pieces = textwrap.wrap(text, columns, drop_whitespace=False, replace_whitespace=False)
    return [TextLine(piece, line.color) for piece in pieces]
