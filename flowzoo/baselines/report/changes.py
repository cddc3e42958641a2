"""Which role changed, and in what: its answers, its form, or its length.

Every role's own accuracy, readability, truncation and length, and how the team came to its answer,
at three places: before training, at the peak, and over those of the last evaluations that come
after it (nothing can have been lost before its peak). The peak is the
evaluation that is best for the team on one half of the problems, and it is looked at on the other
half alone, so that nothing falls merely for having been chosen when it was high. (Both ways and
averaged, as in `diagnostics.cliff`, the halves choose by each other's noise: unbiased, but with
tails that a normal interval does not cover. There the whole procedure is resampled.)

Differences are paired over problems. Their intervals are Student's and hold *together* with 95 %
(Bonferroni over all differences of the table), so that the one that stands out may be read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flowzoo.baselines.diagnostics.cliff import EARLIEST, LAST
from flowzoo.baselines.run.reading import Floats, RunData, read_episodes

MEASURES: tuple[str, ...] = ("role_score", "opening", "strict", "lenient", "truncated", "tokens")
"""`role_score`: own accuracy; `opening`: that of an agent's first reply in an episode, since those
after it are to prompts that depend on what the others did; `strict`, `lenient`: the reply could be
read; `truncated`: cut off by the length limit; `tokens`: length of the reply."""
TEAM: tuple[str, ...] = ("any_correct", "picked", "first_correct", "kept", "repaired")
"""Of an episode. `any_correct`: a candidate was right; `picked`: the team's score where one was.
`first_correct`: the first attempt was right; `kept`, `repaired`: the team's score where it was and
where it was not."""


Mask = npt.NDArray[np.bool_]


def measures(call: Mapping[str, Any]) -> tuple[float, ...]:
    """`MEASURES` of one saved call; NaN where there is no role score or no count of tokens."""
    role_score, tokens = call.get("role_score"), call.get("output_tokens")
    return (
        math.nan if role_score is None else float(role_score),
        math.nan if role_score is None or call.get("turn", 0) else float(role_score),
        float(bool(call.get("strict"))),
        float(bool(call.get("lenient"))),
        float(call.get("finish") == "length"),
        math.nan if tokens is None else float(tokens),
    )


def team_measures(episode: Mapping[str, Any]) -> tuple[float, ...]:
    """`TEAM` of one saved episode; NaN where its facts do not say."""
    score, facts = float(episode["score"]), episode.get("facts", {})
    anyone, first = facts.get("any_correct"), facts.get("first_correct")
    return (
        math.nan if anyone is None else float(anyone),
        score if anyone else math.nan,
        math.nan if first is None else float(first),
        score if first else math.nan,
        score if first is not None and not first else math.nan,
    )


def team_means(episodes: Sequence[Mapping[str, Any]], problems: Sequence[str]) -> Floats:
    """Means over each problem's episodes: (1, problems, team measures); NaN: nothing is known."""
    rows: dict[str, list[tuple[float, ...]]] = {problem: [] for problem in problems}
    for episode in episodes:
        if episode["problem"] in rows:
            rows[episode["problem"]].append(team_measures(episode))
    found = np.full((1, len(problems), len(TEAM)), np.nan)
    for place, measured in enumerate(rows.values()):
        values = np.array(measured).reshape(-1, len(TEAM))
        known = np.isfinite(values)
        counts = known.sum(axis=0)
        sums = np.where(known, values, 0).sum(axis=0)
        found[0, place, counts > 0] = sums[counts > 0] / counts[counts > 0]
    return found


def role_means(
    episodes: Sequence[Mapping[str, Any]], roles: Sequence[str], problems: Sequence[str]
) -> Floats:
    """Means over each role's calls for each problem: (roles, problems, measures); NaN: no calls."""
    sums = np.zeros((len(roles), len(problems), len(MEASURES)))
    counts = np.zeros_like(sums)
    role_at = {role: place for place, role in enumerate(roles)}
    problem_at = {problem: place for place, problem in enumerate(problems)}
    for episode in episodes:
        column = problem_at.get(episode["problem"])
        if column is None:
            continue
        for call in episode["calls"]:
            if call["role"] in role_at:
                values = np.array(measures(call))
                known = np.isfinite(values)
                sums[role_at[call["role"]], column] += np.where(known, values, 0)
                counts[role_at[call["role"]], column] += known
    with np.errstate(invalid="ignore"):
        return sums / counts


def split_peak(scores: Floats, seed: int = 0) -> tuple[Mask, int]:
    """The half of the items to look at, (items,), and the evaluation that the other half chose."""
    looked = np.random.default_rng(seed).permutation(scores.shape[1]) % 2 == 0
    return looked, int(scores[:, ~looked].mean(axis=1).argmax())


def role_changes(run: RunData) -> dict[str, Any]:
    """The table: per role and measure the three levels, and the changes with their intervals.

    Its `why` says what is missing where it cannot be made.
    """
    files, steps, scores = run.transcript_files("eval"), run.steps, run.scores
    if len(steps) < EARLIEST:
        return {"rows": [], "why": f"it needs {EARLIEST} evaluations and there are {len(steps)}"}
    looked, peak = split_peak(scores)
    end = len(steps) - 1
    last = list(range(min(max(peak + 1, end - LAST + 1), end), len(steps)))
    needed = sorted({0, peak, *last})
    missing = [steps[place] for place in needed if steps[place] not in files]
    if missing:
        return {"rows": [], "why": f"the episodes of the evaluations at {missing} are not there"}
    first = read_episodes(files[steps[0]])
    problems = [episode["problem"] for episode in first]
    if len(set(problems)) != scores.shape[1]:
        return {"rows": [], "why": "the saved episodes do not match the held-out scores"}
    roles: dict[int, Floats] = {}
    team: dict[int, Floats] = {}
    for place in needed:
        episodes = read_episodes(files[steps[place]])
        roles[place] = role_means(episodes, run.roles, problems)
        team[place] = team_means(episodes, problems)
    again = {
        call["role"]
        for place in needed
        for episode in read_episodes(files[steps[place]])
        for call in episode["calls"]
        if call.get("turn", 0)
    }
    found = [
        *_levels([""], TEAM, team, looked, peak, last),
        *(
            level
            for level in _levels(run.roles, MEASURES, roles, looked, peak, last)
            if level.measure != "opening" or level.role in again
        ),
    ]
    z = NormalDist().inv_cdf(1 - 0.05 / (2 * max(1, 2 * len(found))))
    rows = [_row(level, z, rising=peak == end) for level in found]
    return {
        "rows": rows,
        "why": "",
        "compared": 2 * len(rows),
        "peak": steps[peak],
        "rising": peak == end,
        "looked": int(looked.sum()),
        "last": [steps[place] for place in last],
        "problems": len(problems),
    }


class RoleMeasure(NamedTuple):
    """One measure of one role ("": the team) for each problem: (problems,) at three places.

    `peak` is NaN for the problems that chose it.
    """

    role: str
    measure: str
    base: Floats
    peak: Floats
    end: Floats


def _levels(
    roles: Sequence[str],
    names: Sequence[str],
    found: Mapping[int, Floats],
    looked: Mask,
    peak: int,
    last: Sequence[int],
) -> list[RoleMeasure]:
    """Those measures that are known at all three places for two problems or more."""
    top = np.where(looked[None, :, None], found[peak], np.nan)
    # A problem counts at the end by those of the last evaluations in which it has the measure.
    ends = np.stack([found[place] for place in last])
    known = np.isfinite(ends)
    with np.errstate(invalid="ignore"):
        end = np.where(known, ends, 0).sum(axis=0) / known.sum(axis=0)
    levels = [
        RoleMeasure(role, name, found[0][row, :, column], top[row, :, column], end[row, :, column])
        for row, role in enumerate(roles)
        for column, name in enumerate(names)
    ]
    return [one for one in levels if np.isfinite(one.base + one.peak + one.end).sum() > 1]


def _row(levels: RoleMeasure, z: float, *, rising: bool) -> dict[str, Any]:
    nothing = {"mean": None, "low": None, "high": None, "n": 0}
    return {
        "role": levels.role,
        "measure": levels.measure,
        "base": float(np.nanmean(levels.base)),
        "peak": float(np.nanmean(levels.peak)),
        "end": float(np.nanmean(levels.end)),
        # In a run that is best at its end there is nothing after the peak to compare.
        "from_peak": nothing if rising else compared(levels.peak, levels.end, z),
        "from_base": compared(levels.base, levels.end, z),
    }


def compared(before: Floats, after: Floats, z: float) -> dict[str, Any]:
    """Their `difference`, and both means over the problems that it is taken over."""
    both = np.isfinite(before + after)
    levels = {"before": float(before[both].mean()), "after": float(after[both].mean())}
    return difference(after - before, z) | levels


def difference(values: Floats, z: float) -> dict[str, Any]:
    """Mean of paired differences (problems,) where they are finite, and its interval at `z`.

    Where no problem differs there is no interval: nothing is known of how many would.
    """
    both = values[np.isfinite(values)]
    if len(both) and not both.any():
        return {"mean": 0.0, "low": None, "high": None, "n": len(both)}
    if len(both) < 2:
        return {"mean": None, "low": None, "high": None, "n": len(both)}
    # Student's quantile from the normal one, first order: Fisher and Cornish 1960.
    quantile = z + (z**3 + z) / (4 * (len(both) - 1))
    mean, half = float(both.mean()), quantile * float(both.std(ddof=1)) / math.sqrt(len(both))
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": len(both)}
