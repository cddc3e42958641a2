"""The measured learning curve of an algorithm, as a picture in its page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowzoo.agents.evaluation.intervals import share_interval

DATA = Path(__file__).resolve().parents[1] / "data" / "curves.json"
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 360, 220, 44, 40, 12, 12


def section(name: str) -> list[str]:
    """The part of the page of algorithm `name`, or a sentence that nothing was measured."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    head = ["## A measured curve", ""]
    if name not in data["curves"]:
        return [*head, "Not measured."]
    curve, settings = data["curves"][name], data["settings"]
    first, last = (accuracy(curve, at) for at in (0, -1))
    return [
        *head,
        f"`{settings['workflow']}` on {settings['task']} with the pocket model, policies "
        f"{curve['sharing']}, {settings['steps']} steps of {settings['problems']} problems, seed "
        f"{settings['seed']}: from {first} to {last} of {curve['problems']} held-out problems, "
        f"{curve['tokens']:,} sampled tokens. Bars are 95 % intervals. One short run each, so the "
        "curves compare no algorithms; [the results](../../results.md#does-training-help) do, over "
        "three seeds.",
        "",
        "```{raw} html",
        picture(name, curve),
        "```",
        "",
        "<small>`" + data["command"].split("; ")[0] + "`</small>",
    ]


def accuracy(curve: Mapping[str, Any], at: int) -> str:
    """An evaluation in percent."""
    return f"{100 * curve['right'][at] / curve['problems']:.1f} %"


def picture(name: str, curve: Mapping[str, Any]) -> str:
    """An SVG in the colors of the page."""
    steps, problems = curve["steps"], curve["problems"]

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / steps[-1]

    def y(share: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    parts = [
        f'<svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="Held-out accuracy of {name} by step">'
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<path class="grid" d="M{LEFT} {y(share):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(share) + 4:.1f}" class="end">{share:.0%}</text>')
    for step in steps:
        parts.append(f'<text x="{x(step):.1f}" y="{HEIGHT - 22}" class="mid">{step}</text>')
    parts.append(f'<text x="{x(steps[-1] / 2):.1f}" y="{HEIGHT - 5}" class="mid">step</text>')
    points = []
    for step, right in zip(steps, curve["right"], strict=True):
        share = share_interval(right / problems, problems)
        parts.append(
            f'<path class="bar" d="M{x(step):.1f} {y(share.low):.1f}V{y(share.high):.1f}"/>'
        )
        points.append(f"{x(step):.1f} {y(right / problems):.1f}")
    parts.append(f'<path class="line" d="M{"L".join(points)}"/>')
    parts += [f'<circle cx="{p.split()[0]}" cy="{p.split()[1]}" r="3.5"/>' for p in points]
    return "".join([*parts, "</svg>"])
