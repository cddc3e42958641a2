"""What a run's facts mean, in sentences: whether it broke, where, and with what uncertainty.

A finding never says more than its test: a difference whose interval includes 0 is called not told
from chance, a place where a loss shows is not called its cause, and what was not measured is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from flowzoo.baselines.diagnostics.capture import WINDOW
from flowzoo.baselines.diagnostics.cliff import FALLING, LAST, THRESHOLD, TOO_COARSE

FindingLevel = Literal["bad", "warn", "good", "unknown", "result"]
Facts = Mapping[str, Any]


CHECKERS = ("evaluator", "verifier")
"""Roles that judge what others did."""


class Finding(NamedTuple):
    """One paragraph of the verdict."""

    level: FindingLevel
    title: str
    text: str


def percent(value: float) -> str:
    """A fraction as per cent."""
    return f"{100 * value:.1f}\u00a0%"


def points(value: float, *, sign: bool = False) -> str:
    """A difference of fractions as percentage points."""
    rounded = round(100 * value, 1) + 0.0  # no minus before 0
    return f"{rounded:{'+' if sign else ''}.1f}".replace("-", "−")


def between(low: float, high: float) -> str:
    """A 95 % interval of a difference, in points."""
    return f"95\u00a0% interval {points(low, sign=True)} to {points(high, sign=True)}"


def cliff_finding(cliff: Facts) -> Finding:
    """The cliff verdict in words, with its n, standard error and smallest detectable drop."""
    if cliff["verdict"] is None:
        return Finding("unknown", "No cliff verdict", f"There is none: {cliff['why']}.")
    over = f"{cliff['items']} held-out problems and {cliff['evaluations']} evaluations"
    if cliff["seeds"] > 1:
        over += f" of {cliff['seeds']} seeds"
    end = "the last evaluation"
    if cliff["last"] > 1:
        end = f"mean of the last {cliff['last']} evaluations after it"
    measured = (
        f"The cross-fitted peak is {percent(cliff['peak'])} and the end "
        f"{percent(cliff['terminal'])} ({end}): peak minus end is {points(cliff['drop'])} points "
        f"({between(cliff['low'], cliff['high'])}, standard error {points(cliff['se'])}; {over})."
    )
    power = f"{points(cliff['detectable'])} points"
    if cliff["verdict"] == "cliff":
        text = (
            f"{measured} The accuracy changed level at step {cliff['cliff_step']}. A drop of "
            f"{power} or more is found with probability 0.8 here."
        )
        return Finding("bad", "The run fell off a cliff", text)
    if cliff["verdict"] == "falling":
        text = (
            f"{measured} The fall began at step {cliff['cliff_step']} at the latest and has not "
            f"lasted for {LAST} evaluations yet: whether it goes on, stays or mends, only more "
            "steps would tell."
        )
        return Finding("bad", "The run was falling when it ended", text)
    if cliff["verdict"] == "not enough evaluations":
        text = (
            f"{measured} With {cliff['evaluations']} evaluations only a fall of "
            f"{points(FALLING[1])} points or more at the very end is looked for, and none was "
            "found. A rise and a fall between two of them leave no trace, and so does a smaller "
            f"fall. To see them, {cliff['remedy']}."
        )
        return Finding("unknown", "Too few evaluations to see a fall", text)
    if cliff["verdict"] == "not enough items":
        text = (
            f"{measured} At this standard error only a drop of {power} or more would be found with "
            f"probability 0.8; none was, and smaller ones are not excluded. About "
            f"{cliff['items_needed']} problems per evaluation would find {points(TOO_COARSE)} "
            "points (--eval-problems)."
        )
        return Finding("unknown", "Not enough held-out problems to exclude a fall", text)
    if cliff["verdict"] == "not enough seeds":
        text = (
            f"{measured} The seeds differ so much that only a drop of {power} or more would be "
            f"found with probability 0.8, and smaller ones are not excluded. More seeds would "
            "allow a verdict; more problems would not."
        )
        return Finding("unknown", "The seeds differ too much for a cliff verdict", text)
    text = (
        f"{measured} A cliff is a drop of at least {points(THRESHOLD)} points whose interval "
        f"excludes 0, with none of the last {LAST} evaluations within one standard error of the "
        f"peak; a fall in progress one of {points(FALLING[2])} points over the last two, or "
        f"{points(FALLING[1])} in the last. Drops smaller than {power} may have been missed."
    )
    return Finding("good", "No cliff found", text)


def gain_finding(gain: Facts | None) -> Finding:
    """What training brought over step 0."""
    if gain is None:
        return Finding("unknown", "No gain to report", "It takes two evaluations or more.")
    last = gain["last"]
    text = (
        f"Held-out accuracy went from {percent(gain['before'])} before training to "
        f"{percent(gain['after'])} at step {gain['step']}: {points(last['mean'], sign=True)} points"
        f" ({between(last['low'], last['high'])}, paired over {last['n']} problems; one run, so "
        "not over seeds)."
    )
    if "terminal" in gain:
        end = gain["terminal"]
        text += (
            f" By the mean of the last {LAST} evaluations it is "
            f"{points(end['mean'], sign=True)} ({between(end['low'], end['high'])})."
        )
    judged = gain.get("terminal", last)
    if judged["high"] < 0:
        return Finding("bad", "It ended below where it began", text)
    if judged["low"] > 0:
        return Finding("good", "It ended above where it began", text)
    if last["high"] < 0:  # and the mean of the last evaluations says less
        return Finding("warn", "Its last evaluation is below where it began", text)
    return Finding("unknown", "Its gain cannot be told from chance", text)


def role_finding(changes: Facts, fell: bool) -> Finding:
    """In which role, and in what of it, a loss from the peak to the end shows."""
    if changes["why"]:
        return Finding("unknown", "Roles not compared", f"It was not done: {changes['why']}.")
    if changes["rising"]:
        text = (
            f"The last evaluation (step {changes['peak']}) is the best of all on the half of the "
            "problems that the peak is chosen by, so that nothing can have been lost after it."
        )
        return Finding("good", "No role lost what it had", text)
    rows = [row for row in changes["rows"] if row["from_peak"]["mean"] is not None]
    # What a checking role is worth depends on what it is shown: that is judged elsewhere.
    opening = {row["role"] for row in rows if row["measure"] == "opening"}
    losses = [
        row for row in rows
        if row["measure"] == ("opening" if row["role"] in opening else "role_score")
        and row["role"] not in CHECKERS and change_sign(row["from_peak"]) < 0
    ]  # fmt: skip
    over = counted(len(changes["last"]), "evaluation")
    scope = (
        f"From step {changes['peak']}, which was best on one half of the problems, to the last "
        f"{over} after it, on the {changes['looked']} problems of the other half; the intervals "
        f"of all {changes['compared']} differences hold together with 95 %."
    )
    if not losses:
        text = " ".join(
            ["No fall of a role's own accuracy can be told from chance.", *team_words(rows), scope]
        )
        if fell:
            return Finding("unknown", "The fall cannot be told in a role's own accuracy", text)
        return Finding("good", "No fall of a role's own accuracy shows", text)
    losses.sort(key=lambda row: row["from_peak"]["mean"])
    worst = losses[0]["role"]
    parts = [f"{_loss(row)} {_form(rows, row['role'])}" for row in losses]
    parts += team_words(rows)
    parts.append(scope + " This is where the loss shows; it does not by itself prove a cause.")
    title = f"The loss shows in {worst}" if fell else f"{worst} lost accuracy"
    if len(losses) > 1:
        title += f" most, and in {listed([row['role'] for row in losses[1:]])}"
    return Finding("bad" if fell else "warn", title, " ".join(parts))


def team_words(rows: Sequence[Facts]) -> list[str]:
    """What of the team's way to its answer got worse: its candidates, its choice, its repairs."""
    said = {
        "any_correct": ("A right candidate was there in", "of the episodes"),
        "picked": ("Where a candidate was right, the team answered right in", "of the episodes"),
        "first_correct": ("The first attempt was right in", "of the episodes"),
        "kept": ("A right first attempt was still right at the end in", "of these episodes"),
        "repaired": ("A wrong first attempt was right at the end in", "of these episodes"),
    }
    found: list[str] = []
    for row in rows:
        change = row["from_peak"]
        if row["measure"] in said and change_sign(change) < 0:
            start, end = said[row["measure"]]
            found.append(
                f"{start} {percent(change['before'])} {end} at the peak and in "
                f"{percent(change['after'])} at the end "
                f"({points(change['mean'], sign=True)} points, interval "
                f"{points(change['low'], sign=True)} to {points(change['high'], sign=True)})."
            )
    return found


def change_sign(change: Facts) -> int:
    """-1 or 1 for a fall or a rise whose interval excludes 0, else 0."""
    if change["low"] is None:
        return 0
    return int(change["low"] > 0) - int(change["high"] < 0)


def _loss(row: Facts) -> str:
    change = row["from_peak"]
    when = " in its first reply of an episode" if row["measure"] == "opening" else ""
    return (
        f"The own accuracy of {row['role']}{when} went from {percent(change['before'])} to "
        f"{percent(change['after'])} ({points(change['mean'], sign=True)} points, interval "
        f"{points(change['low'], sign=True)} to {points(change['high'], sign=True)})."
    )


def _form(rows: Sequence[Facts], role: str) -> str:
    """Whether a role's replies became unreadable or were cut off, or are simply wrong."""
    names = {
        "strict": "the share of its replies that the strict parser reads",
        "truncated": "the share of its replies cut off by the length limit",
    }
    seen: list[str] = []
    for row in rows:
        change, worse = row["from_peak"], -1 if row["measure"] == "strict" else 1
        if row["role"] == role and row["measure"] in names and change_sign(change) == worse:
            seen.append(
                f"{names[row['measure']]} went from {percent(change['before'])} to "
                f"{percent(change['after'])}"
            )
    if not seen:
        return (
            f"Readability and truncation of {role} show no worsening that chance would not explain:"
            " as far as this can tell, its replies became wrong rather than unreadable."
        )
    text = listed(seen)
    return f"At the same time {text}: part of the loss may be one of form."


def capture_finding(capture: Facts) -> Finding:
    """The capture verdict on one policy in words."""
    policy = f"policy {capture['policy']}"
    if capture["why"]:
        level: FindingLevel = "good" if capture["settled"] else "unknown"
        title = "Capture does not apply" if capture["settled"] else "Capture not tested"
        return Finding(level, f"{title}: {policy}", f"For {policy}: {capture['why']}.")
    pairs = capture["pairs"]
    if not pairs:
        return Finding("unknown", f"Capture not tested: {policy}", "Its roles hardly speak.")
    caught = [pair for pair in pairs if pair["captured"]]
    if caught:
        text = " ".join(_capture_text(pair) for pair in caught)
        title = "; ".join(f"{pair['by']} captured {pair['of']}" for pair in caught)
        return Finding("bad", f"{title} ({policy})", text)
    heavy = {pair["by"]: pair for pair in pairs if pair["dominant"]}
    moved = [pair for pair in pairs if pair["moved"]]
    text = (
        f"No role of {policy} has both more gradient mass than its tokens explain over {WINDOW} "
        "steps and another role whose replies moved to its form."
    )
    text += "".join(f" {_mass_text(pair)}" for pair in heavy.values())
    text += "".join(
        f" The replies of {pair['of']} did come closer to the form of {pair['by']} "
        f"(distance {pair['distance_before']:.2f} to {pair['distance_after']:.2f}, "
        f"p = {pair['p_value']:.3f})." for pair in moved
    )  # fmt: skip
    level = "warn" if heavy or moved else "good"
    return Finding(level, f"No capture found ({policy})", text)


def capture_findings(captures: Sequence[Facts]) -> list[Finding]:
    """One finding for each policy of several roles, and one for all others together."""
    several = [capture for capture in captures if len(capture["roles"]) > 1]
    found = [capture_finding(capture) for capture in several]
    if captures and not several:
        text = "Every policy serves one role, so there is nobody to capture."
        found.append(Finding("good", "Capture does not apply", text))
    return found


def _capture_text(pair: Facts) -> str:
    return (
        f"{_mass_text(pair)} The replies of {pair['of']} came closer to the form that "
        f"{pair['by']} had before training: distance {pair['distance_before']:.2f} to "
        f"{pair['distance_after']:.2f} standard deviations (permutation test "
        f"over {pair['replies']} replies, "
        f"p = {pair['p_value']:.4f})."
    )


def _mass_text(pair: Facts) -> str:
    return (
        f"Over {WINDOW} steps from step {pair['from_step']} on, the odds of the gradient mass of "
        f"{pair['by']} were at least {pair['odds']:g} times those of its tokens and of its first "
        f"steps (mass {percent(pair['mass_first'])} at first, {percent(pair['mass_last'])} at the "
        f"end; tokens {percent(pair['tokens_last'])})."
    )


def swap_finding(swap: Facts) -> Finding:
    """What exchanging the policies of two roles did to the accuracy."""
    text = (
        f"With the policies of {listed(swap['roles'])} exchanged, the last evaluation's accuracy "
        f"is {percent(swap['accuracy'])}, which differs by {points(swap['mean'], sign=True)} "
        f"points ({between(swap['low'], swap['high'])}, paired over {swap['n']} problems)."
    )
    if swap["high"] < 0:
        return Finding("result", f"{listed(swap['roles'])} have specialised", text)
    return Finding("result", f"No specialisation of {listed(swap['roles'])} shows", text)


def counted(count: int, noun: str) -> str:
    """A number and its noun, with an s where it takes one."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def listed(words: Sequence[str]) -> str:
    """Words with commas and an `and`."""
    return ", ".join(words[:-1]) + f" and {words[-1]}" if len(words) > 1 else "".join(words)
