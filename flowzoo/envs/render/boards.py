"""Drawn boards in a terminal: the world at the start, and move by move after every turn in it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.script import Reply

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from flowzoo.envs.tasks.task import Scene

MOST_FRAMES = 60
"""Moves of a turn that are shown one by one; of a longer one only the end."""


def drawn(scene: Scene) -> Text:
    """A scene as text with styles, indented."""
    from rich.text import Text

    text = Text()
    for number, row in enumerate(scene):
        text.append("\n  " if number else "  ")
        for tile, style in row:
            text.append(tile, style=style)
    return text


def print_start(episode: Episode, out: Console) -> bool:
    """Draw the world at the start; False, and nothing printed, if the task has none."""
    scene = episode.workflow.task.scene(episode.problem)
    if scene is None:
        return False
    out.print(drawn(scene))
    return True


def print_moved(
    episode: Episode, before: list[Reply], reply: Reply, out: Console, pace: float
) -> None:
    """Draw what `reply` did to the world, if it did anything.

    Args:
        episode: the episode.
        before: the replies before it, in call order.
        reply: the newest reply.
        out: where to draw.
        pace: seconds between two moves; 0 draws the end only.
    """
    workflow, problem = episode.workflow, episode.problem
    then, now = workflow.world(before), workflow.world([*before, reply])
    if now is None or now == then:
        return
    frames = workflow.task.frames(then, now) if pace > 0 else []
    end = workflow.task.scene(problem, now)
    if end is None:
        return
    if frames and len(frames) <= MOST_FRAMES:
        from rich.live import Live

        with Live(console=out, auto_refresh=False, transient=True) as live:
            for frame in frames:
                scene = workflow.task.scene(problem, frame)
                if scene is not None:
                    live.update(drawn(scene), refresh=True)
                time.sleep(pace)
    out.print(drawn(end))
