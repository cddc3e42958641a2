"""The graph of a workflow, drawn from the order of recorded turns.

A box holds the agents that are asked at the same time, an arrow leads to those that are asked next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise

Step = tuple[str, ...]
"""Agents of a phase; the problem and the reward are steps of one name."""
PROBLEM: Step = ("problem",)
REWARD: Step = ("reward",)
CHIP, HIGH, GAP, MIDDLE, WIDTH = 112, 34, 42, 195, 390


def graph(episodes: Sequence[Sequence[Step]], roles: Mapping[str, int]) -> str:
    """An SVG of the steps of some episodes; `roles` has the number of every agent's role."""
    paths = [[PROBLEM, *steps, REWARD] for steps in merged(episodes, roles)]
    steps = list(dict.fromkeys(step for path in paths for step in path if step != REWARD))
    steps.append(REWARD)
    arrows = dict.fromkeys(pair for path in paths for pair in pairwise(path))
    tops = {step: 4 + number * (HIGH + GAP) for number, step in enumerate(steps)}
    height = 8 + len(steps) * (HIGH + GAP) - GAP
    parts = [
        f'<svg class="graph" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="Graph of the workflow">'
    ]
    bends = {-1: 0, 1: 0}
    for source, target in arrows:
        ahead = steps.index(target) - steps.index(source)
        if ahead == 1:
            y = tops[source] + HIGH
            parts.append(arrow(f"M{MIDDLE} {y}V{y + GAP - 7}", MIDDLE, y + GAP - 1, "down"))
            continue
        side = -1 if ahead > 1 else 1
        parts.append(bend(source, target, tops, side, bends[side]))
        bends[side] += 1
    for step in steps:
        parts += boxes(step, tops[step], roles)
    return "".join([*parts, "</svg>"])


def merged(
    episodes: Sequence[Sequence[Step]], roles: Mapping[str, int]
) -> Iterator[Sequence[Step]]:
    """Episodes in which steps of the same roles are one, the one with the most agents."""
    largest: dict[frozenset[int], Step] = {}
    for step in (step for steps in episodes for step in steps):
        key = frozenset(roles[agent] for agent in step)
        largest[key] = max(largest.get(key, ()), step, key=len)
    for steps in episodes:
        yield [largest[frozenset(roles[agent] for agent in step)] for step in steps]


def half(step: Step) -> float:
    """Half of the width of a step."""
    return len(step) * (CHIP + 6) / 2


def bend(source: Step, target: Step, tops: Mapping[Step, int], side: int, number: int) -> str:
    """An arrow beside the boxes: to an earlier step or the same one on the right, else left."""
    widest = max(half(step) for step in tops)
    x = MIDDLE + side * min(widest + 12 + 9 * number, MIDDLE - 4)
    start = MIDDLE + side * (half(source) - 3)
    end = MIDDLE + side * (half(target) + 4)
    y1 = tops[source] + HIGH / 2 + (6 if source == target else 0)
    y2 = tops[target] + HIGH / 2 - 6
    return arrow(f"M{start} {y1}H{x}V{y2}H{end}", end, y2, "left" if side > 0 else "right")


def arrow(path: str, x: float, y: float, way: str) -> str:
    """A line with a tip at its end."""
    tips = {"down": "l-5 -8h10z", "left": "l8 -5v10z", "right": "l-8 -5v10z"}
    return f'<path class="wire" d="{path}"/><path class="tip" d="M{x} {y}{tips[way]}"/>'


def boxes(step: Step, top: int, roles: Mapping[str, int]) -> list[str]:
    """The agents of a step, side by side."""
    left = MIDDLE - half(step) + 3
    parts = []
    for number, agent in enumerate(step):
        x = left + number * (CHIP + 6)
        kind = f"role-{roles[agent]}" if agent in roles else "end-box"
        parts.append(
            f'<g class="{kind}"><rect x="{x:g}" y="{top}" width="{CHIP}" height="{HIGH}" rx="6"/>'
            f'<text x="{x + CHIP / 2:g}" y="{top + 22}" class="mid">{escape(agent)}</text></g>'
        )
    return parts
