"""Findings on roles: which role changed, and in what: its answers, its form, or its length."""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from flowzoo.agents.evaluation.summary import mean
from flowzoo.aliases import Floats
from flowzoo.baselines.diagnostics.checkers import Episode, Row
from flowzoo.baselines.diagnostics.cliff import EARLIEST, FELL, LAST
from flowzoo.baselines.diagnostics.roles import own_score
from flowzoo.baselines.report.accuracy import FINE
from flowzoo.baselines.report.by_policy import by_policy, run_by_policy
from flowzoo.baselines.report.findings import TEAM, Facts, Finding, FindingLevel, RunFindings
from flowzoo.baselines.report.words import join_words, percent, pluralize, points
from flowzoo.baselines.run.reading import RunData, read_episodes
from flowzoo.baselines.stats import POWER

MEASURES: tuple[str, ...] = ("role_score", "opening", "strict", "lenient", "truncated", "tokens")
"""`role_score`: own accuracy, given a right candidate or the evidence; `opening`: the same of an
agent's first reply of an episode, whose prompt depends on no other agent; `strict`, `lenient`: the
reply could be read; `tokens`: its length."""
TEAM_MEASURES: tuple[str, ...] = ("any_correct", "picked", "first_correct", "kept", "repaired")
"""`any_correct`: a candidate was right; `picked`: the team's score if one was; `kept`, `repaired`:
the team's score if the first attempt was right and if it was wrong."""
CHECKERS = ("evaluator", "verifier")  # roles that judge the replies of others


Mask = npt.NDArray[np.bool_]


def roles(run: RunData, facts: Facts) -> RunFindings:
    """Report the role in which a loss from the peak to the end shows."""
    changes = role_changes(run) if run.evaluations else {"rows": [], "why": "no evaluation yet"}
    if run.pays:  # `pay` compares the roles
        return RunFindings({"changes": changes})
    fell = facts["cliff"]["verdict"] in FELL
    finding = role_finding(changes, fell, facts.get("blamed", ""), facts.get("acquitted", ()))
    return RunFindings({"changes": changes}, [finding])


def call_measures(episode: Episode, call: Row) -> dict[str, float | None]:
    """`MEASURES` of one saved call."""
    score = own_score(episode, call)
    return {
        "role_score": score,
        "opening": None if call.get("turn", 0) else score,
        "strict": bool(call.get("strict")),
        "lenient": bool(call.get("lenient")),
        "truncated": call.get("finish") == "length",
        "tokens": call.get("output_tokens"),
    }


def team_measures(episode: Episode) -> dict[str, float | None]:
    """`TEAM_MEASURES` of one saved episode; None if its facts lack them."""
    score, facts = episode["score"], episode.get("facts", {})
    candidate, first = facts.get("any_correct"), facts.get("first_correct")
    return {
        "any_correct": candidate,
        "picked": score if candidate else None,
        "first_correct": first,
        "kept": score if first else None,
        "repaired": None if first is None or first else score,
    }


def _problem_means(
    episodes: Sequence[Episode], problems: Sequence[str]
) -> dict[tuple[str, str], Floats]:
    # By role ("": the team) and measure, (problems,); NaN: no reply to the problem has it.
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    for episode in episodes:
        calls = ((call["role"], call_measures(episode, call)) for call in episode["calls"])
        for role, measures in ((TEAM, team_measures(episode)), *calls):
            for name, value in measures.items():
                if value is not None and math.isfinite(value):
                    of_problem = values.setdefault((role, name), {})
                    of_problem.setdefault(episode["problem"], []).append(float(value))
    return {
        key: np.array([mean(of_problem.get(problem, ())) for problem in problems])
        for key, of_problem in values.items()
    }


def split_peak(scores: Floats) -> tuple[Mask, int]:
    """The half of the items to compare, (items,), and the best evaluation on the other half."""
    compared = np.random.default_rng(0).permutation(scores.shape[1]) % 2 == 0
    return compared, int(scores[:, ~compared].mean(axis=1).argmax())


def role_changes(run: RunData) -> Facts:
    """The table: three levels per role and measure, and changes with intervals; or `why` not."""
    # The peak is the best evaluation on one half of the problems, and the other half is compared:
    # nothing falls merely because it was chosen when it was high. Both ways and averaged, the
    # halves would choose by each other's noise. The intervals hold together (Bonferroni over the
    # table), so that the largest difference may be read.
    files, steps, scores = run.transcript_files("eval"), run.steps, run.scores
    if len(steps) < EARLIEST:
        return {"rows": [], "why": f"it needs {EARLIEST} evaluations and there are {len(steps)}"}
    half, peak = split_peak(scores)
    end = len(steps) - 1
    last = list(range(min(max(peak + 1, end - LAST + 1), end), len(steps)))
    needed = sorted({0, peak, *last})
    missing = [steps[index] for index in needed if steps[index] not in files]
    if missing:
        return {"rows": [], "why": f"the episodes of the evaluations at {missing} are missing"}
    episodes = {index: by_policy(run, read_episodes(files[steps[index]])) for index in needed}
    problems = list(dict.fromkeys(episode["problem"] for episode in episodes[0]))
    if len(problems) != scores.shape[1]:
        return {"rows": [], "why": "the saved episodes do not match the held-out scores"}
    means = {index: _problem_means(rows, problems) for index, rows in episodes.items()}
    calls = (call for rows in episodes.values() for episode in rows for call in episode["calls"])
    repeated = {call["role"] for call in calls if call.get("turn", 0)}
    skills = ("role_score", "opening")
    names = [
        *((TEAM, name) for name in TEAM_MEASURES),
        *(
            (role, name)
            for role in run_by_policy(run).roles
            for name in MEASURES
            if (name != "opening" or role in repeated) and not (run.pays and name in skills)
        ),
    ]
    levels = {key: _levels(key, means, half, peak, last) for key in names}
    levels = {key: three for key, three in levels.items() if np.isfinite(sum(three)).sum() > 1}
    z = NormalDist().inv_cdf(1 - 0.05 / (2 * max(1, 2 * len(levels))))
    rows = [_row(*key, three, z, rising=peak == end) for key, three in levels.items()]
    return {
        "rows": rows,
        "why": "",
        "compared": 2 * len(rows),
        "peak": steps[peak],
        "rising": peak == end,
        "looked": int(half.sum()),
        "last": [steps[index] for index in last],
        "problems": len(problems),
    }


Levels = tuple[Floats, Floats, Floats]
"""A measure before training, at the peak and at the end, (problems,) each."""


def _levels(
    key: tuple[str, str],
    means: Mapping[int, Mapping[tuple[str, str], Floats]],
    half: Mask,
    peak: int,
    last: Sequence[int],
) -> Levels:
    nothing = np.full(len(half), np.nan)
    base, top = means[0].get(key, nothing), means[peak].get(key, nothing)
    # A problem counts at the end by the last evaluations in which it has the measure.
    ends = np.stack([means[index].get(key, nothing) for index in last])
    finite = np.isfinite(ends)
    with np.errstate(invalid="ignore"):
        end = np.where(finite, ends, 0).sum(axis=0) / finite.sum(axis=0)
    return base, np.where(half, top, np.nan), end  # the peak is not compared where it was chosen


def _row(role: str, measure: str, levels: Levels, z: float, *, rising: bool) -> Facts:
    nothing = {"mean": None, "low": None, "high": None, "n": 0}
    most = math.inf if measure == "tokens" else 1.0
    base, peak, end = levels
    return {
        "role": role,
        "measure": measure,
        "base": float(np.nanmean(base)),
        "peak": float(np.nanmean(peak)),
        "end": float(np.nanmean(end)),
        # A run that is best at its end has nothing after the peak to compare.
        "from_peak": nothing if rising else _paired_change(peak, end, z, most),
        "from_base": _paired_change(base, end, z, most),
    }


def _paired_change(before: Floats, after: Floats, z: float, most: float) -> Facts:
    both = np.isfinite(before + after)
    change = difference(after - before, z, most)
    return {**change, "before": float(before[both].mean()), "after": float(after[both].mean())}


def difference(values: Floats, z: float, most: float) -> Facts:
    """Mean of the `n` finite paired differences (problems,), and its interval at `z`.

    No difference is larger than `most`: of shares 1.
    """
    # No interval if no problem differs: the data do not show how many would.
    both = values[np.isfinite(values)]
    if len(both) < 2 or not both.any():
        level = 0.0 if len(both) and not both.any() else None
        return {"mean": level, "low": None, "high": None, "n": len(both)}
    # Student's quantile from the normal one, first order: Fisher and Cornish 1960.
    quantile = z + (z**3 + z) / (4 * (len(both) - 1))
    middle, half = float(both.mean()), quantile * float(both.std(ddof=1)) / math.sqrt(len(both))
    low, high = max(-most, middle - half), min(most, middle + half)
    return {"mean": middle, "low": low, "high": high, "n": len(both)}


def role_finding(
    changes: Facts, fell: bool, blamed: str = "", acquitted: Sequence[str] = ()
) -> Finding:
    """State in which role, and in which of its measures, a loss from the peak to the end shows.

    A replay has the last word: roles that it `acquitted` are not named, and beside the role that it
    `blamed` this is a warning.
    """
    if changes["why"]:
        return Finding("unknown", "Roles not compared", f"Reason: {changes['why']}.")
    if changes["rising"]:
        text = (
            f"The last evaluation (step {changes['peak']}) is the best of all on the half of the "
            "problems that choose the peak, so nothing can have been lost after it."
        )
        return Finding("good", "No role lost accuracy", text)
    rows = [row for row in changes["rows"] if row["from_peak"]["mean"] is not None]
    losses = [
        row
        for row in _team_changes(rows)
        if change_sign(row["from_peak"]) < 0 and row["role"] not in acquitted
    ]
    scope = (
        f"From step {changes['peak']}, the best on one half of the problems, to the last "
        f"{pluralize(len(changes['last']), 'evaluation')} after it, on the {changes['looked']} "
        f"problems of the other half; the intervals of all {changes['compared']} differences hold "
        "together with 95 %."
    )
    if not losses:
        text = " ".join(["No fall of a role's own accuracy is significant.", *_team_losses(rows),
                         scope])  # fmt: skip
        if fell:
            return Finding("unknown", "Cannot tell which role explains the drop", text)
        missed = max(
            (_detectable(row["from_peak"]) for row in _team_changes(rows)), default=math.inf
        )
        if missed > FINE:
            text += (
                f" A fall of less than {points(min(missed, 1.0))} points of some role is not "
                f"excluded; more problems per evaluation (--eval-problems) would show "
                f"{points(FINE)}."
            )
            return Finding("unknown", "Cannot tell whether a role lost accuracy", text)
        return Finding("good", "No role lost accuracy", text)
    losses.sort(key=lambda row: row["from_peak"]["mean"])
    worst = losses[0]["role"]
    parts = [f"{_loss(row)} {_form(rows, row['role'])}" for row in losses]
    parts += _team_losses(rows)
    parts.append(scope + " The loss shows here; this does not by itself prove a cause.")
    title = f"The loss shows in {worst}" if fell else f"{worst} lost accuracy"
    if len(losses) > 1:
        title += f" most, and in {join_words([row['role'] for row in losses[1:]])}"
    level: FindingLevel = "bad" if fell and blamed in ("", worst) else "warn"
    return Finding(level, title, " ".join(parts), "loss", worst)


def _team_changes(rows: Sequence[Facts]) -> list[Facts]:
    # The own accuracy of a checker depends on the replies that it judges: `checkers` tests it.
    opening = {row["role"] for row in rows if row["measure"] == "opening"}
    return [
        row
        for row in rows
        if row["measure"] == ("opening" if row["role"] in opening else "role_score")
        and row["role"] not in CHECKERS
    ]


def _detectable(change: Facts) -> float:
    # Fall found with probability 0.8: of a half-width of z standard errors, z + 0.84 of them. Where
    # no problem differs: the share of problems that fall with which one of these would have.
    if change["low"] is None:
        return 1 - (1 - POWER) ** (1 / change["n"]) if change["mean"] == 0 else math.inf
    return 1.28 * (change["high"] - change["low"]) / 2


_TEAM_PHRASES = {
    "any_correct": ("A right candidate was there in", "the"),
    "picked": ("With a right candidate, the team answered right in", "the"),
    "first_correct": ("The first attempt was right in", "the"),
    "kept": ("A right first attempt was still right at the end in", "these"),
    "repaired": ("A wrong first attempt was right at the end in", "these"),
}


def _team_losses(rows: Sequence[Facts]) -> list[str]:
    sentences: list[str] = []
    for row in rows:
        change = row["from_peak"]
        if row["measure"] in _TEAM_PHRASES and change_sign(change) < 0:
            start, which = _TEAM_PHRASES[row["measure"]]
            sentences.append(
                f"{start} {percent(change['before'])} of {which} episodes at the peak and in "
                f"{percent(change['after'])} at the end ({_change_text(change)})."
            )
    return sentences


def _change_text(change: Facts) -> str:
    mean, low, high = (points(change[name], sign=True) for name in ("mean", "low", "high"))
    return f"{mean} points, interval {low} to {high}"


def change_sign(change: Facts) -> int:
    """-1 or 1 for a fall or a rise whose interval excludes 0, else 0."""
    if change["low"] is None:
        return 0
    return int(change["low"] > 0) - int(change["high"] < 0)


def _loss(row: Facts) -> str:
    change = row["from_peak"]
    scope = " in its first reply of an episode" if row["measure"] == "opening" else ""
    return (
        f"The own accuracy of {row['role']}{scope} went from {percent(change['before'])} to "
        f"{percent(change['after'])} ({_change_text(change)})."
    )


def _form(rows: Sequence[Facts], role: str) -> str:
    names = {
        "strict": ("the share of its replies that the strict parser reads", -1),
        "truncated": ("the share of its replies cut off by the length limit", 1),
    }
    parts: list[str] = []
    for row in rows:
        name, worse = names.get(row["measure"], ("", 0))
        change = row["from_peak"]
        if row["role"] == role and name and change_sign(change) == worse:
            levels = f"{percent(change['before'])} to {percent(change['after'])}"
            parts.append(f"{name} went from {levels}")
    if not parts:
        return (
            f"Readability and truncation of {role} did not become significantly worse: as far as "
            "the test shows, its replies became wrong rather than unreadable."
        )
    return f"At the same time {join_words(parts)}: part of the loss may be one of form."
