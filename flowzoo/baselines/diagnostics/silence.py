"""Causes of no learning, read off the metrics of a run while it trains, with remedies."""

# Each cause is a pure function of the rows of metrics, so that a resumed run finds what it would
# have found and a report finds it again.

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flowzoo.agents.evaluation.alarms import (
    CUT,
    LOW,
    Alarm,
    Remedies,
    RoleReplies,
    endless_alarm,
    group_alarm,
    other_problems,
    own_budget,
    reply_alarms,
    warm_start_command,
    with_remedies,
)
from flowzoo.baselines.diagnostics.checkers import Row, one_verdict
from flowzoo.baselines.settings.algorithms import ALGORITHMS

STEPS = 3  # steps in a row that make a cause of what may happen in a single one


def silences(rows: Sequence[Row], settings: Mapping[str, Any]) -> list[Alarm]:
    """Causes that hold after the last of `rows`, the metrics of a run so far."""
    # After an evaluation alone there are none, except at step 0.
    if not rows:
        return []
    step = rows[-1]["step"]
    causes: list[Alarm | None] = []
    if step <= 1:
        replies = _role_replies(rows[-1], "" if step else "eval/")
        taught = max(_signals(rows[-1]).values(), default=1.0)
        alarms = start_alarms(rows[-1], settings, replies, taught)
        # `_nothing` reports a step without training.
        causes += [alarm for alarm in alarms if alarm.cause != "nothing"]
    if settings.get("env"):
        prefix = "" if "fact/cut" in rows[-1] else "eval/"
        shares = (rows[-1].get(f"{prefix}fact/{name}", 0.0) for name in ("cut", "truncated"))
        causes.append(endless_alarm(*shares))
    if _has_training(rows[-1]):
        last = [row for row in rows[-STEPS:] if _has_training(row)]
        causes.append(_nothing(last[-1], settings))
        if len(last) == STEPS:
            causes += [_reward(last, settings), *_truncation(last, settings)]
            causes += _roles(last, settings)
    return list({cause.cause: cause for cause in causes if cause is not None}.values())


def start_alarms(
    row: Row, settings: Mapping[str, Any], replies: Iterable[RoleReplies], taught: float
) -> list[Alarm]:
    """The alarms of the evaluation of step 0, or of the rollouts of step 1."""
    # Groups are reported if few rows are `taught`, and the replies do not explain it.
    warm_start = ""
    if not (settings.get("env") or settings.get("program")):
        workflow, model = settings["workflow"], settings["model"]
        warm_start = warm_start_command(workflow, settings.get("task"), settings["options"], model)
    remedies = Remedies(settings["lengths"], bool(settings.get("examples")), warm_start)
    alarms = reply_alarms(replies, remedies)
    alarms += [
        Alarm(f"verdict/{role}", with_remedies(line, remedies)) for role, line in one_verdict(row)
    ]
    if alarms or taught >= LOW:
        return alarms
    score = row.get("reward/mean", 0.0)
    alike = row.get("group/zero_variance", 0) + row.get("group/singleton", 0)
    flat = group_alarm(row.get("group/count", 0), alike, score, _easier(settings, score, row))
    return [flat] if flat else []


def _role_replies(row: Row, prefix: str) -> list[RoleReplies]:
    start = f"{prefix}strict/"
    return [
        RoleReplies(
            role,
            int(row.get(f"{prefix}calls/{role}", 0)),
            row[f"{start}{role}"],
            row.get(f"{prefix}truncated/{role}", 0.0),
        )
        for role in (name.removeprefix(start) for name in row if name.startswith(start))
    ]


def silence_record(rows: Sequence[Row], settings: Mapping[str, object]) -> list[dict[str, Any]]:
    """Causes of a run in their order: first and last step, number of steps, and first text."""
    record: dict[str, dict[str, Any]] = {}
    for end, row in enumerate(rows, start=1):
        for cause, text in silences(rows[max(0, end - STEPS) : end], settings):
            step = row["step"]
            entry = {"cause": cause, "first": step, "steps": 0, "text": text, "last": step}
            seen = record.setdefault(cause, entry)
            seen["last"], seen["steps"] = step, seen["steps"] + 1
    return list(record.values())


def _nothing(row: Row, settings: Mapping[str, Any]) -> Alarm | None:
    if _sum(row, "learn/rows_trained/"):
        return None
    rows, cut = _sum(row, "learn/rows/"), _sum(row, "learn/truncated/")
    start = f"step {row['step']} trained nothing: 0 of {rows:.0f} rows, no optimizer step"
    if rows and settings["truncated"] == "mask" and cut > rows / 2:
        why = (
            f"{_percent(cut / rows)} of the replies ran into the length limit and are left out of "
            f"the loss; {_longer(None, settings)}"
        )
    else:
        easier = _easier(settings, _mean([row], "reward/mean"), row)
        why = f"no group has rewards that differ ({_rewards([row])}); {easier}"
    return Alarm("nothing", f"{start}: {why}")


def _reward(rows: Sequence[Row], settings: Mapping[str, Any]) -> Alarm | None:
    for row in rows:
        groups = row.get("group/count", 0)
        alike = row.get("group/zero_variance", 0) + row.get("group/singleton", 0)
        flat = alike >= groups if groups else not _sum(row, "reward_std/")
        if not flat or _sum(row, "signal/"):
            return None
    remedy = _easier(settings, _mean(rows, "reward/mean"), rows[-1])
    flat_text = f"the rewards of no group have differed in {_steps(rows)} ({_rewards(rows)})"
    return Alarm("reward", f"{flat_text}; {remedy}")


def _truncation(rows: Sequence[Row], settings: Mapping[str, Any]) -> list[Alarm]:
    fates = {"mask": " and were left out of the loss", "penalize": " and were penalized"}
    fate = fates.get(settings["truncated"], "")
    causes: list[Alarm] = []
    for name in (name for name in rows[-1] if name.startswith("truncated/")):
        role, least = name.removeprefix("truncated/"), min(row.get(name, 0.0) for row in rows)
        if least > CUT:
            text = (
                f"{_percent(least)} or more of the replies of {role} ran into the length "
                f"limit{fate} in {_steps(rows)}; {_longer(role, settings)}"
            )
            causes.append(Alarm(f"truncation/{role}", text))
    return causes


def _roles(rows: Sequence[Row], settings: Mapping[str, Any]) -> list[Alarm]:
    signals = [_signals(row) for row in rows]
    causes: list[Alarm] = []
    if not all(any(signal.values()) for signal in signals):
        return causes
    for role in signals[-1]:
        if any(signal.get(role, 1.0) for signal in signals):
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
            score = _mean(rows, f"reward/{role}")
            why = f"its advantages are all 0; {_easier(settings, score, rows[-1])}"
        text = f"{role} has learned nothing in {_steps(rows)}, while other roles have: {why}"
        causes.append(Alarm(f"role/{role}", text))
    return causes


def _signals(row: Row) -> dict[str, float]:
    # `signal/ROLE/POLICY`
    shares: dict[str, float] = {}
    for name, value in row.items():
        if name.startswith("signal/"):
            role = name.split("/")[1]
            shares[role] = max(shares.get(role, 0.0), value)
    return shares


def _has_training(row: Row) -> bool:
    return any(name.startswith("learn/rows/") for name in row)


def _sum(row: Row, start: str) -> float:
    return sum(value for name, value in row.items() if name.startswith(start))


def _longer(role: str | None, settings: Mapping[str, Any]) -> str:
    budget = own_budget(role or "", settings["lengths"])
    limit = (
        f"--lengths (now {budget})" if budget else f"--max-tokens (now {settings['max_tokens']})"
    )
    taught = settings["truncated"] in ("penalize", "shape")
    short = "" if taught else ", or teach brevity: --truncated penalize"
    return f"raise {limit}; if the model thinks, --thinking off{short}"


def _easier(settings: Mapping[str, Any], score: float, row: Row) -> str:
    algorithm = ALGORITHMS.get(settings["algorithm"])
    name = "candidates" if algorithm and algorithm.sampling != "episodes" else "samples"
    now = "" if settings[name] is None else f" (now {settings[name]})"
    more = f"take more --{name}{now} or --problems (now {settings['problems']})"
    if any(name.startswith(("pay/", "eval/pay/")) for name in row):  # no problem is easier
        return more
    return (
        f"{more}, "
        f"{other_problems(score, settings['options'])}, or `flowzoo filter` and --difficulty"
    )


def _mean(rows: Sequence[Row], name: str) -> float:
    # 0 where no row has the metric: easier problems are the remedy then.
    values = [row[name] for row in rows if name in row]
    return sum(values) / len(values) if values else 0.0


def _rewards(rows: Sequence[Row]) -> str:
    measured = any("reward/mean" in row for row in rows)
    text = f"mean reward {_mean(rows, 'reward/mean'):.2f}" if measured else "no episode"
    read = [value for row in rows for name, value in row.items() if name.startswith("strict/")]
    if read and max(read) == 0:
        text += ", no reply could be read"
    return text


def _steps(rows: Sequence[Row]) -> str:
    return f"steps {rows[0]['step']} to {rows[-1]['step']}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
