"""Results of `flowzoo why` in words, for the command and the page."""

from collections.abc import Mapping
from typing import Any

FUNCTIONS = ("reward", "loss", "advantage_function", "callback")
"""Settings that name functions of the user's own."""


def explanation_lines(facts: Mapping[str, Any]) -> list[str]:
    """The verdict, the culprit, the change, and every rerun."""
    verdicts = {
        "sound": "sound: it did not fall, and no settings that can be put back cost it accuracy",
        "explained": "a fall" if facts["fell"] else "no fall, but an end that settings hold down",
        "not in the settings": "not in your settings: the model, the task or the algorithm",
        "undecided": f"undecided: these remain: {', '.join(facts['remaining'])}",
    }
    lines = [verdicts[facts["verdict"]]]
    lines += [f"breaks it by itself: {', '.join(units)}" for units in facts["culprits"]]
    if facts["change"]:
        effect = "mended it" if facts["confirmed"] else "mended it under the first seed only"
        lines.append(f"leaving out {', '.join(facts['change'])} was run and {effect}")
    if facts["parted"] is not None:
        lines.append(f"the courses part at step {facts['parted']}")
    if not facts["seeds"]:
        lines.append("under a second seed the run as it was does not fail")
    lines += [f"{facts['made']} reruns in {facts['minutes']} minutes"]
    for row in facts["reruns"]:
        what = ", ".join(row["left_out"])
        line = f"{f'without {what}' if what else 'as it was'}, seed {row['seed']}: "
        line += {None: "cannot be run", True: "fails", False: "does not fail"}[row["fails"]]
        if row["gain"] and what:
            mean, low, high = (100 * row["gain"][name] for name in ("mean", "low", "high"))
            line += (
                f", {mean:+.1f} points (95 % interval {low:+.1f} to {high:+.1f}) against the run"
            )
        lines.append(line)
    return lines


def cause_words(facts: Mapping[str, Any]) -> str:
    """The cause in one clause; empty if the reruns have not found one."""
    if facts["verdict"] != "explained":
        return ""
    culprits = " and, by itself, ".join(", ".join(units) for units in facts["culprits"])
    return f"{culprits}; leaving out {', '.join(facts['change'])} was run and mended it"
