"""Findings on pay: what every role of a game earned before training and at the end."""

from flowzoo.baselines.diagnostics.pay import Level, PayChange, pay_changes
from flowzoo.baselines.report.findings import Facts, Finding, RunFindings
from flowzoo.baselines.report.words import between, percent
from flowzoo.baselines.run.reading import RunData


def pay(run: RunData, _: Facts) -> RunFindings:
    """Report the pay of every role at the first and the last evaluation."""
    evaluations = run.evaluations
    if not run.pays or len(evaluations) < 2:
        return RunFindings({"pays": run.pays, "pay": []})
    changes = pay_changes(evaluations[0], evaluations[-1])
    findings = [pay_finding(change, run.steps[-1]) for change in changes]
    rows = [
        change._asdict() | {"gain": change.gain and change.gain._asdict()} for change in changes
    ]
    return RunFindings({"pays": True, "pay": rows}, findings)


def pay_finding(change: PayChange, step: int) -> Finding:
    """State a role's pay before and after, its paired difference, and its share."""
    role, gain = change.role, change.gain
    text = (
        f"The mean pay of {role} on the held-out problems was {_amounts(change.before)} before "
        f"training and {_amounts(change.after)} at step {step}"
    )
    if change.shares is not None:
        before, after = map(percent, change.shares)
        text += f": {before} and then {after} of the sum of the roles' mean pay"
    if gain is None:
        title = f"Cannot tell whether the pay of {role} changed"
        return Finding("unknown", title, f"{text}. It was paid in too few problems to compare.")
    ends = between(gain.low, gain.high, show=_number)
    text += (
        f". The difference is {_number(gain.mean, sign=True)} ({ends}, paired over {gain.n} "
        "problems; one run, so not over seeds)."
    )
    if gain.high < 0:
        return Finding("warn", f"{role} earns less than at the start", text)
    if gain.low > 0:
        return Finding("result", f"{role} earns more than at the start", text)
    if gain.low == gain.high:
        return Finding("result", f"{role} earns what it earned at the start", text)
    return Finding("unknown", f"Cannot tell whether {role} earns more or less", text)


def _amounts(level: Level) -> str:
    mean, low, high = level
    if low is None or high is None:
        return _number(mean)
    return f"{_number(mean)} ({_number(low)} to {_number(high)})"


def _number(value: float, *, sign: bool = False) -> str:
    rounded = round(value, 3) + 0.0  # no minus before 0
    return f"{rounded:{'+' if sign else ''}.3f}".replace("-", "−")
