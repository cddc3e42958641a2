"""What programs and searches came to between two phases, in words for people."""

from __future__ import annotations

from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.script import Found, Ran, Run, Search


def remarks(episode: Episode, phase: int) -> list[str]:
    """Lines about the programs and searches that followed the replies of `phase`.

    Runs on tests are left out: some of them are ground truth.
    """
    turns = [turn for turn in episode.turns if turn.phase == phase]
    later = [turn.logged for turn in episode.turns if turn.phase == phase + 1]
    start = turns[0].logged + len(turns)
    before = sum(not isinstance(entry, str) for entry in episode.log[:start])
    results = episode.log[start : later[0] if later else None]
    effects = episode.requested[before : before + len(results)]
    lines: list[str] = []
    for effect, result in zip(effects, results, strict=True):
        if isinstance(effect, Search) and isinstance(result, Found):
            lines += [f"found: {passage.text}" for passage in result.passages] or ["nothing found"]
        elif isinstance(effect, Run) and isinstance(result, Ran) and not effect.tests:
            lines.append(of_program(result))
    return lines


def of_program(ran: Ran) -> str:
    """What a program that was run once printed, or how it failed."""
    said = " ".join(ran.output.split())
    if ran.status == "AC":
        return f"the program printed: {said}" if said else "the program printed nothing"
    detail = ran.cases[0].detail if ran.cases else ""
    return f"the program failed: {ran.status}{', ' if detail else ''}{' '.join(detail.split())}"
