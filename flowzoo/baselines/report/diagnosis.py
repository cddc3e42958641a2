"""A run's diagnosis: what happened, in which role, and what reruns found or could look at."""

import shlex
from collections.abc import Sequence

from flowzoo.baselines.diagnostics.cliff import FELL
from flowzoo.baselines.diagnostics.roles import GIVEN
from flowzoo.baselines.report.accuracy import is_gain, is_unchanged
from flowzoo.baselines.report.by_policy import policy_of
from flowzoo.baselines.report.changes import change_sign
from flowzoo.baselines.report.findings import Facts, Finding, metric_series
from flowzoo.baselines.report.health import KL
from flowzoo.baselines.report.roles import COLLAPSED
from flowzoo.baselines.report.transcripts import run_moment
from flowzoo.baselines.report.words import percent
from flowzoo.baselines.run.reading import RunData
from flowzoo.baselines.why.words import FUNCTIONS, cause_words, explanation_lines
from flowzoo.errors import DataError
from flowzoo.files import read_json

CAUSES = ("hacked", "parted", "large update")
"""Codes of measured findings that may be causes."""
SHOWN_LEVELS = ("bad", "warn")
Settings = Sequence[Sequence[str]]
"""Names and values of settings that differ from the defaults."""
BROKEN_ROLE = (
    "never read", "lost form", "loops", "fits no prompt", *COLLAPSED, "never judges", "one place",
    "never right", "lost skill", "nobody asks", "says the same", "a copy",
)  # fmt: skip
"""Codes of findings that name a role, the plainest evidence first."""
SHOWN = tuple(code for code in BROKEN_ROLE if code != "lost skill")
READABLE = 0.9
STILL = 0.1  # share of the largest movement below which a policy did not cause the fall
UNABLE = ("never read", "never right", "never judges")
"""Codes of findings that a model could never do its role's job."""


def diagnose(
    run: RunData, facts: Facts, findings: Sequence[Finding], changed: Settings
) -> Facts | None:
    """The diagnosis of a run, the first lines of its page; None without two evaluations.

    `sentences` are what happened and how it shows; `cause` is what reruns have shown. Where there
    were none, `advice` is the command that would find it among the `suspects`.
    """
    if len(run.evaluations) < 2:
        return None
    bad = [finding for finding in findings if finding.level == "bad"]
    diagnosis: Facts = {
        "sentences": [_describe_health(run, facts, findings)], "role": "", "cause": "",
        "suspects": (), "advice": "", "moment": None, "steps": (),
    }  # fmt: skip
    if not bad:
        return diagnosis
    role = _role(run, facts, bad)
    before, after = _window(run, facts, bad)
    what = _describe_end(run, facts, bad, before, after)
    explained = facts.get("why")
    reruns = {"cause": explained["cause"]} if explained else {
        "suspects": suspects(run, findings, changed),
        "advice": f"flowzoo why {shlex.quote(str(run.folder))}",
    }  # fmt: skip
    return {
        **diagnosis,
        "sentences": [what, *([_how(facts, bad, role, what)] if role else [])],
        "role": role,
        **reruns,
        "moment": run_moment(role or (run.roles[-1] if run.roles else ""), run, before, after),
        "steps": (run.steps[before], run.steps[after]),
    }


def _describe_health(run: RunData, facts: Facts, findings: Sequence[Finding]) -> str:
    gain = facts["gain"]
    undecided = [finding.title for finding in findings if finding.level == "unknown"]
    what = _course(run, gain)
    if is_gain(gain):
        what += f" in {gain['step']} steps"
    elif not is_unchanged(gain):
        what += ", which may be chance"
    warned = any(finding.level == "warn" for finding in findings)
    what += "." if warned else ", and no test found a fault."
    noted = [f.title for f in findings if f.level == "warn" or f.code == "one place"]
    titles = [f" {title[0].upper()}{title[1:]}." for title in noted]
    verb = "is" if len(undecided) == 1 else "are"
    rest = f" {len(undecided)} of the questions below {verb} open." if undecided else ""
    return "".join([what, *titles, rest])


# -- what happened, in which role -----------------------------------------------------------------


def _role(run: RunData, facts: Facts, bad: Sequence[Finding]) -> str:
    # A replay is the strongest evidence, then what a reader of the replies would see.
    named = [finding for finding in bad if finding.role and finding.code in (*BROKEN_ROLE, "loss")]
    ranks = {code: rank for rank, code in enumerate((*BROKEN_ROLE, "loss"))}
    roles = [finding.role for finding in sorted(named, key=lambda finding: ranks[finding.code])]
    roles = [*([str(facts["blamed"])] if facts.get("blamed") else []), *roles]
    if not roles:
        # The role that answers from others' work, where a workflow ended worse than they.
        worse = any(finding.code == "worse" for finding in bad)
        return next((role for role in run.roles if worse and role in GIVEN), "")
    if {finding.code for finding in named if finding.role == roles[0]} & set(UNABLE):
        return roles[0]
    # A policy that hardly moved cannot have unlearned anything: its role suffers from another.
    series = metric_series(run, KL)  # nats per token of every iteration
    moves = {
        role: sum(value for _, value in series.get(policy_of(run, role), ())) for role in roles
    }
    return next(role for role in roles if moves[role] >= STILL * max(moves.values()))


def _window(run: RunData, facts: Facts, bad: Sequence[Finding]) -> tuple[int, int]:
    # Evaluations before and after: the onset of a fall, else the largest fall from one to the next.
    means, start = run.scores.mean(axis=1), facts["cliff"].get("onset")
    if start is not None:
        index = run.steps.index(start["step"])
        return index - 1, index
    if any(finding.code in ("fall", "below start", "hacked", "parted", "alarm") for finding in bad):
        index = int((means[1:] - means[:-1]).argmin()) + 1
        return index - 1, index
    return 0, len(run.steps) - 1


def _describe_end(
    run: RunData, facts: Facts, bad: Sequence[Finding], before: int, after: int
) -> str:
    means = run.scores.mean(axis=1)
    end = f"{percent(float(means[-1]))} at the end"
    codes = [finding.code for finding in bad]
    if facts["cliff"]["verdict"] in FELL or {"below start", "fall", "alarm"} & set(codes):
        text = (
            f"Held-out {run.measure} fell from {percent(float(means[before]))} at step "
            f"{run.steps[before]} to {percent(float(means[after]))} at step {run.steps[after]}"
        )
        return f"{text}{'' if after == len(means) - 1 else f', and was {end}'}."
    if "hacked" in codes and run.settings.get("reward"):
        return f"The training reward was earned without right answers; {run.measure} is {end}."
    if "hacked" in codes:
        return f"{next(f.title for f in bad if f.code == 'hacked')}."
    if "worse" in codes:
        return f"{next(f.title for f in bad if f.code == 'worse')}: {end}."
    return f"{bad[0].title}. {_course(run, facts['gain'])}."


def _course(run: RunData, gain: Facts) -> str:
    after = percent(gain["after"])
    if is_unchanged(gain):
        return f"Held-out {run.measure} stayed at {after}, unchanged on every problem"
    verb = "rose" if is_gain(gain) else "went"
    return f"Held-out {run.measure} {verb} from {percent(gain['before'])} to {after}"


def _how(facts: Facts, bad: Sequence[Finding], role: str, what: str) -> str:
    rows = {row["measure"]: row for row in facts["changes"]["rows"] if row["role"] == role}
    skill, form = rows.get("opening") or rows.get("role_score"), rows.get("strict")
    parts = [f"It shows in {role}"]
    if skill is not None and change_sign(skill["from_peak"]) < 0:
        parts.append(
            f"whose own answers went from {percent(skill['peak'])} to {percent(skill['end'])} right"
        )
    if form is not None and form["end"] >= READABLE:
        parts.append("whose replies stay readable" if len(parts) == 1 else "and stayed readable")
    elif form is not None:
        parts.append(f"of whose replies {percent(form['end'])} can be read at the end")
    titles = [
        finding.title
        for finding in bad
        if finding.role == role and finding.code in SHOWN and finding.title not in what
    ]
    return " ".join([f"{', '.join(parts)}.", *(f"{title}." for title in titles[:2])])


# -- why ------------------------------------------------------------------------------------------


def suspects(run: RunData, findings: Sequence[Finding], changed: Settings) -> list[str]:
    """Suspects of a run that failed: its functions, its other settings, then measured findings."""
    given = sorted(changed, key=lambda row: row[0] not in FUNCTIONS)
    settings = [f"--{name.replace('_', '-')} {value}" for name, value in given]
    measured = [
        finding.title
        for finding in findings
        if finding.code in CAUSES and finding.level in SHOWN_LEVELS
    ]
    return [*settings, *measured]


def read_explanation(run: RunData) -> Facts | None:
    """Read what `flowzoo why` has written about a run, in lines; None if it was not asked."""
    file = run.folder.resolve().with_name(f"{run.folder.resolve().name}-why") / "why.json"
    if not file.is_file():
        return None
    facts = read_json(file)
    try:
        return {"file": str(file), "lines": explanation_lines(facts), "cause": cause_words(facts)}
    except (KeyError, TypeError, AttributeError):
        raise DataError(
            f"{file} is no result of `flowzoo why`: remove it, or repeat `flowzoo why`"
        ) from None
