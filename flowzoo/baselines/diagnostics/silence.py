"""Whether a run learns nothing, and what to change: read off its metrics while it trains.

Four causes, each a pure function of the rows of metrics, so that a resumed run finds what it would
have found and a report finds it again:

* `nothing`: a step in which no row had a part in a gradient.
* `truncation/ROLE`: more than `MANY` of a role's replies at the length limit, `STEPS` steps in a
  row.
* `reward`: no group whose rewards differ, `STEPS` steps in a row.
* `role/ROLE`: a role without a row that carries an advantage into the loss, `STEPS` steps in a row
  in which other roles had some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flowzoo.baselines.settings.algorithms import ALGORITHMS

STEPS = 3
"""Steps in a row that make a cause of what may happen in a single one."""
MANY = 0.3
"""Share of truncated replies above which a role is warned of."""

Row = Mapping[str, Any]


class Silence(NamedTuple):
    """Something that keeps a run from learning."""

    cause: str
    """One of those above: what is told once."""
    step: int
    """The step at which it was found."""
    text: str
    """What it is and what to change, in one line."""


def silences(rows: Sequence[Row], settings: Mapping[str, Any]) -> list[Silence]:
    """What holds after the last of `rows`, which are the metrics of a run so far.

    `settings` are those of `run.json`. Nothing holds after an evaluation alone.
    """
    if not rows or not _trained(rows[-1]):
        return []
    last = [row for row in rows[-STEPS:] if _trained(row)]
    found = [_nothing(last[-1], settings)]
    if len(last) == STEPS:
        found += [_reward(last, settings), *_truncation(last, settings), *_roles(last, settings)]
    return [one for one in found if one is not None]


def silence_record(rows: Sequence[Row], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every cause of a whole run, as plain values.

    Returns:
        Per cause `cause`, `first` and `last` (steps), `steps` (how many it held at) and `text`, of
        the first time.
    """
    found: dict[str, dict[str, Any]] = {}
    for end in range(1, len(rows) + 1):
        for one in silences(rows[max(0, end - STEPS) : end], settings):
            entry = {"cause": one.cause, "first": one.step, "steps": 0, "text": one.text}
            known = found.setdefault(one.cause, entry)
            known["last"], known["steps"] = one.step, known["steps"] + 1
    return list(found.values())


def _nothing(row: Row, settings: Mapping[str, Any]) -> Silence | None:
    """A step that changed no weight."""
    if _sum(row, "learn/rows_trained/"):
        return None
    rows, cut = _sum(row, "learn/rows/"), _sum(row, "learn/truncated/")
    said = f"step {row['step']} trained nothing: 0 of {rows:.0f} rows, no optimiser step"
    if rows and settings["truncated"] == "mask" and cut > rows / 2:
        why = (
            f"{_percent(cut / rows)} of the replies ran into the length limit and are left out of "
            f"the loss; {_longer(None, settings)}"
        )
    else:
        why = f"no group has rewards that differ ({_rewards([row])}); {_easier(settings)}"
    return Silence("nothing", row["step"], f"{said}: {why}")


def _reward(rows: Sequence[Row], settings: Mapping[str, Any]) -> Silence | None:
    """Rewards that differ in no group."""
    for row in rows:
        groups = row.get("group/count", 0)
        alike = row.get("group/zero_variance", 0) + row.get("group/singleton", 0)
        known = alike >= groups if groups else not _sum(row, "reward_std/")
        if not known or _sum(row, "signal/"):
            return None
    step = rows[-1]["step"]
    text = (
        f"the rewards of no group have differed in {_steps(rows)} ({_rewards(rows)}); "
        f"{_easier(settings)}"
    )
    return Silence("reward", step, text)


def _truncation(rows: Sequence[Row], settings: Mapping[str, Any]) -> list[Silence]:
    """Roles whose replies are cut off."""
    found: list[Silence] = []
    start = "truncated/"
    for role in (name.removeprefix(start) for name in rows[-1] if name.startswith(start)):
        shares = [row.get(f"{start}{role}", 0.0) for row in rows]
        if min(shares) > MANY:
            fate = {
                "mask": " and were left out of the loss",
                "penalise": " and were penalised",
            }.get(settings["truncated"], "")
            text = (
                f"{_percent(min(shares))} or more of the replies of {role} ran into the length "
                f"limit{fate} in {_steps(rows)}; {_longer(role, settings)}"
            )
            found.append(Silence(f"truncation/{role}", rows[-1]["step"], text))
    return found


def _roles(rows: Sequence[Row], settings: Mapping[str, Any]) -> list[Silence]:
    """Roles that learn nothing while others do."""
    signals = [_signals(row) for row in rows]
    found: list[Silence] = []
    if not all(any(one.values()) for one in signals):
        return found
    for role in signals[-1]:
        if any(one.get(role, 1.0) for one in signals):
            continue
        cut = rows[-1].get(f"truncated/{role}", 0.0)
        if settings["truncated"] == "mask" and cut > 0.5:
            why = (
                f"{_percent(cut)} of its replies ran into the length limit and are left out of the "
                f"loss; {_longer(role, settings)}"
            )
        elif rows[-1].get(f"group/singleton/{role}") == 1:
            why = (
                "each of its calls is alone in its group, with which nothing is compared; take "
                "more --samples, or an --algorithm or --advantage mean_group with larger groups"
            )
        else:
            why = f"its advantages are all 0; {_easier(settings)}"
        text = f"{role} has learnt nothing in {_steps(rows)}, while other roles have: {why}"
        found.append(Silence(f"role/{role}", rows[-1]["step"], text))
    return found


def _signals(row: Row) -> dict[str, float]:
    """Role -> share of its rows that carry an advantage into the loss; `signal/ROLE/POLICY`."""
    found: dict[str, float] = {}
    for name, value in row.items():
        if name.startswith("signal/"):
            role = name.split("/")[1]
            found[role] = max(found.get(role, 0.0), value)
    return found


def _trained(row: Row) -> bool:
    """Whether the row is one of an iteration."""
    return any(name.startswith("learn/rows/") for name in row)


def _sum(row: Row, start: str) -> float:
    return sum(value for name, value in row.items() if name.startswith(start))


def _longer(role: str | None, settings: Mapping[str, Any]) -> str:
    """What lets replies end by themselves."""
    own = [word for word in settings["lengths"] if word.startswith(f"{role}=") and "/" in word]
    limit = f"--lengths (now {own[0]})" if own else f"--max-tokens (now {settings['max_tokens']})"
    taught = settings["truncated"] in ("penalise", "shape")
    short = "" if taught else ", or teach brevity: --truncated penalise"
    return f"raise {limit}; if the model thinks, --thinking off{short}"


def _easier(settings: Mapping[str, Any]) -> str:
    """What makes rewards differ."""
    algorithm = ALGORITHMS.get(settings["algorithm"])
    name = "candidates" if algorithm and algorithm.sampling != "episodes" else "samples"
    now = "" if settings[name] is None else f" (now {settings[name]})"
    return (
        f"take more --{name}{now} or --problems (now {settings['problems']}), or problems that are "
        "solved sometimes: an easier level (--options level=1) or `flowzoo filter` and --difficulty"
    )


def _rewards(rows: Sequence[Row]) -> str:
    """The mean rewards, and how many of the replies could be read at all."""
    means = [row["reward/mean"] for row in rows if "reward/mean" in row]
    said = f"mean reward {sum(means) / len(means):.2f}" if means else "no episode"
    read = [value for row in rows for name, value in row.items() if name.startswith("strict/")]
    if read and max(read) == 0:
        said += ", no reply could be read"
    return said


def _steps(rows: Sequence[Row]) -> str:
    return f"steps {rows[0]['step']} to {rows[-1]['step']}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
