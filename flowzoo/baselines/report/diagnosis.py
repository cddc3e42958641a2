"""A run's diagnosis: what happened, in which role, the likely cause, and one thing to try."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from flowzoo.agents.policy_map import role_of
from flowzoo.baselines.diagnostics.cliff import FELL
from flowzoo.baselines.diagnostics.skills import GIVEN
from flowzoo.baselines.report.accuracy import is_gain, is_unchanged
from flowzoo.baselines.report.by_policy import policy_of, whole_role
from flowzoo.baselines.report.changes import change_sign
from flowzoo.baselines.report.findings import Facts, Finding, metric_series, percent
from flowzoo.baselines.report.health import FAR, KL
from flowzoo.baselines.report.moments import run_moment
from flowzoo.baselines.report.roles import BORN, COLLAPSED, ONE_PLACE, WORSE, check_permitted
from flowzoo.baselines.run.reading import RunData
from flowzoo.baselines.settings.by_policy import value_of, written_values
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.file import arguments, from_table
from flowzoo.baselines.settings.preflight import outline_run
from flowzoo.errors import FlowzooError

STEADY_KL = 0.02  # nats a token of one iteration below which an update is no cause
JUMP = 3.0  # times the usual size at which an iteration is one that stands out
WIDE = 0.5  # a clip range above which ratios are hardly clipped
FIELDS = tuple(TrainConfig.__dataclass_fields__)
CUT = 0.2  # share of truncated replies, or rise of it, that is a cause
ENTROPY = 0.05  # weight of the entropy bonus that is a cause
BROKEN_ROLE = (
    "never read", "lost form", "loops", "fits no prompt", *COLLAPSED, BORN, ONE_PLACE,
    "never right", "lost skill", "nobody asks", "says the same", "a copy",
)  # fmt: skip
"""Codes of findings that name a role, the plainest evidence first."""
SHOWN = tuple(code for code in BROKEN_ROLE if code != "lost skill")
READABLE = 0.9
STILL = 0.1  # share of the largest movement below which a policy did not cause the fall
CANNOT = {
    "never read": "write a readable reply", "never right": "answer rightly",
    BORN: "tell right from wrong",
}  # fmt: skip
"""Words for a job that a model could never do, by the code of the finding."""


class Change(NamedTuple):
    """Settings to try, and the words for it."""

    settings: Mapping[str, Any]
    arguments: str
    """Arguments of `flowzoo train` that make the change."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A likely cause in one clause, and changes that would remove it, the best first."""

    text: str
    changes: Sequence[Change] = ()
    advice: str = ""
    """Advice for causes that no setting removes."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The first lines of a page; `sentences` are what happened, how it shows, and the cause."""

    sentences: Sequence[str]
    role: str = ""
    cause: str = ""
    advice: str = ""
    change: str = ""
    """Arguments that make one change; empty: there is none to give."""
    command: str = ""
    """Command that trains the same run with that change."""
    moment: Mapping[str, Any] | None = None
    steps: Sequence[int] = field(default_factory=tuple)
    """Evaluations before and after what happened."""


def diagnose(run: RunData, facts: Facts, findings: Sequence[Finding]) -> dict[str, Any] | None:
    """The diagnosis of a run as plain values; None without two evaluations."""
    if len(run.evaluations) < 2:
        return None
    bad = [finding for finding in findings if finding.level == "bad"]
    if not bad:
        return asdict(_healthy(run, facts, findings))
    role = _role(run, facts, bad)
    before, after = _window(run, facts, bad)
    cause = next(
        _causes(run, facts, bad, role, (before, after)), Cause("The metrics do not show why.")
    )
    change = next((change for change in cause.changes if is_accepted(run, change)), None)
    moment = run_moment(role or (run.roles[-1] if run.roles else ""), run, before, after)
    what = _what(run, facts, bad, before, after)
    sentences = [what, *([_how(facts, bad, role, what)] if role else [])]
    return asdict(
        Diagnosis(
            sentences=sentences,
            role=role,
            cause=cause.text,
            advice=cause.advice if change is None else "",
            change="" if change is None else change.arguments,
            command="" if change is None else command(run, change),
            moment=moment,
            steps=(run.steps[before], run.steps[after]),
        )
    )


def _healthy(run: RunData, facts: Facts, findings: Sequence[Finding]) -> Diagnosis:
    gain = facts["gain"]
    undecided = [finding.title for finding in findings if finding.level == "unknown"]
    what = _course(run, gain)
    if is_gain(gain):
        what += f" in {gain['step']} steps"
    elif not is_unchanged(gain):
        what += ", which may be chance"
    warned = any(finding.level == "warn" for finding in findings)
    what += "." if warned else ", and no test found a fault."
    noted = [f.title for f in findings if f.level == "warn" or f.code == ONE_PLACE]
    titles = [f" {title[0].upper()}{title[1:]}." for title in noted]
    verb = "is" if len(undecided) == 1 else "are"
    rest = f" {len(undecided)} of the questions below {verb} open." if undecided else ""
    return Diagnosis(["".join([what, *titles, rest])])


# -- what happened, in which role -----------------------------------------------------------------


def _role(run: RunData, facts: Facts, bad: Sequence[Finding]) -> str:
    # A replay is the strongest evidence, then what a reader of the replies would see.
    named = [finding for finding in bad if finding.role and finding.code in (*BROKEN_ROLE, "loss")]
    ranks = {code: rank for rank, code in enumerate((*BROKEN_ROLE, "loss"))}
    roles = [finding.role for finding in sorted(named, key=lambda finding: ranks[finding.code])]
    roles = [*([str(facts["blamed"])] if facts.get("blamed") else []), *roles]
    if not roles:
        return _answering(run, bad)
    if {finding.code for finding in named if finding.role == roles[0]} & CANNOT.keys():
        return roles[0]
    # A policy that hardly moved cannot have unlearned anything: its role suffers from another.
    moves = {role: _movement(run, role) for role in roles}
    return next(role for role in roles if moves[role] >= STILL * max(moves.values()))


def _answering(run: RunData, bad: Sequence[Finding]) -> str:
    """The role that answers from others' work, where a workflow ended worse than they."""
    worse = any(finding.code == WORSE for finding in bad)
    return next((role for role in run.roles if worse and role in GIVEN), "")


def _movement(run: RunData, role: str) -> float:
    """Divergences of the iterations of a role's policy, added up, in nats per token."""
    return sum(value for _, value in metric_series(run, KL).get(policy_of(run, role), ()))


def _window(run: RunData, facts: Facts, bad: Sequence[Finding]) -> tuple[int, int]:
    # Evaluations before and after: the onset of a fall, else the largest fall from one to the next.
    means, start = run.scores.mean(axis=1), facts["cliff"].get("onset")
    if start is not None:
        index = run.steps.index(start["step"])
        return index - 1, index
    if any(finding.code in ("fall", "below start", "hacked", "parted") for finding in bad):
        index = int((means[1:] - means[:-1]).argmin()) + 1
        return index - 1, index
    return 0, len(run.steps) - 1


def _what(run: RunData, facts: Facts, bad: Sequence[Finding], before: int, after: int) -> str:
    means = run.scores.mean(axis=1)
    end = f"{percent(float(means[-1]))} at the end"
    codes = [finding.code for finding in bad]
    if facts["cliff"]["verdict"] in FELL or "below start" in codes:
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


def _causes(
    run: RunData, facts: Facts, bad: Sequence[Finding], role: str, window: tuple[int, int]
) -> Iterator[Cause]:
    codes = {finding.code for finding in bad}
    settings = run.settings
    if "hacked" in codes and settings.get("reward"):
        yield Cause(
            f"{settings['reward']} pays replies that are wrong",
            (Change({"reward": ""}, "--reward ''"),),
        )
    if "hacked" in codes:
        yield Cause(
            "the score pays other things than a solution, and they are easier to learn",
            advice="Pay less for them, or end the run by `solved`.",
        )
    born = {finding.role for finding in bad if finding.code in CANNOT}
    if role in born:
        yield from _short_limit(run, role)
    for code, verb in CANNOT.items():
        names = sorted({finding.role for finding in bad if finding.code == code})
        if names:
            yield Cause(
                f"the starting model of {', '.join(names)} cannot {verb}",
                advice="Start from a model that can, or from a warm start (`flowzoo sft`).",
            )
    if settings.get("entropy", 0.0) >= ENTROPY:
        yield Cause(
            f"an entropy bonus of {settings['entropy']:g}, which pays for any other reply",
            (Change({"entropy": 0.0}, "--entropy 0"),),
        )
    yield from _update(run, role, window)
    yield from _truncation(run, role)
    if any(finding.code in COLLAPSED and finding.role == role for finding in bad):
        yield from _team_credit(run, role)
    lost = {finding.role for finding in bad if finding.code == "lost form"}
    if role in lost and _shares_policy(run, role):
        yield Cause(
            f"{role} shares its policy with roles that write in another form",
            (Change({"sharing": ["isolated"]}, "--sharing isolated"), _slower(settings, role)),
        )
    if codes & {"fall", "below start", "lost skill", "loss", "lost form", "loops", ONE_PLACE}:
        size = _largest(run, role, window)
        largest = f", none of more than {size[0]:.2g} nats a token" if size else ""
        yield Cause(
            f"many iterations in one direction, at a rate of {_rate(run, run.rows[-1]):.2g}"
            f"{largest}",
            (_slower(settings, role), Change({"kl": 0.05}, "--kl 0.05")),
        )


def _update(run: RunData, role: str, window: tuple[int, int]) -> Iterator[Cause]:
    size = _largest(run, role, window)
    if size is None:
        return
    largest, step, policy, usual = size
    if largest < FAR and not (largest >= STEADY_KL and largest >= JUMP * usual):
        return
    settings = run.settings
    text = f"one iteration, step {step}, moved policy {policy} by {largest:.2g} nats a token"
    row = next(row for row in run.rows if row["step"] == step)
    steps = row.get(f"learn/steps/{policy}", 1)
    changes: list[Change] = []
    reasons: list[str] = []
    if steps > 1:
        reasons.append(f"in {steps:.0f} optimizer steps")
        changes.append(Change({"updates": 1}, "--updates 1"))
    low, high = (value_of(name, settings.get(name), policy) for name in ("clip_low", "clip_high"))
    if max(low or 0.0, high or 0.0) > WIDE:
        reasons.append("hardly clipped")
        usual_clip = {"clip_low": None, "clip_high": None}
        changes.append(Change(usual_clip, "(without --clip-low and --clip-high)"))
    changes.append(_slower(settings, role))
    because = f", {' and '.join(reasons)}" if reasons else f" at a rate of {_rate(run, row):.2g}"
    yield Cause(f"{text}{because}; trust regions in use stop at 0.01 to 0.05", changes)


def _largest(
    run: RunData, role: str, window: tuple[int, int]
) -> tuple[float, int, str, float] | None:
    """Largest divergence by an iteration of a window: nats, step, policy, usual size."""
    policies = {policy_of(run, role)} if role else set(run.policies.values())
    start, end = (run.steps[index] for index in window)
    sizes = [
        (value, step, policy)
        for policy, moved in metric_series(run, KL).items()
        if policy in policies
        for step, value in moved
    ]
    until = [size for size in sizes if size[1] <= end]
    if not until:
        return None
    values = sorted(value for value, *_ in sizes)
    # The last large one before the fall, not an earlier one that did no harm.
    late = [size for size in until if size[1] > start]
    return (*max(late or until), values[len(values) // 2])


def _short_limit(run: RunData, role: str) -> Iterator[Cause]:
    share = run.evaluations[0].get(f"eval/truncated/{role}", 0.0)
    if share >= CUT:
        limit = f"the length limit, which cuts off {percent(share)} of the replies of {role}"
        yield Cause(limit, _longer(run))


def _longer(run: RunData) -> tuple[Change, ...]:
    limit = run.settings.get("max_tokens")
    return (Change({"max_tokens": 2 * limit}, f"--max-tokens {2 * limit}"),) if limit else ()


def _truncation(run: RunData, role: str) -> Iterator[Cause]:
    name = f"eval/truncated/{role}"
    course = [row.get(name, math.nan) for row in run.evaluations]
    if not role or not course[-1] - course[0] >= CUT:
        return
    yield Cause(
        f"the replies of {role} grew into the length limit ({percent(course[0])} to "
        f"{percent(course[-1])} cut off)",
        _longer(run),
    )


def _team_credit(run: RunData, role: str) -> Iterator[Cause]:
    options = [word for word in run.settings.get("options", ()) if not word.startswith("credit=")]
    options = [*options, "credit=local"]
    local = Change({"options": options}, f"--options {' '.join(options)}")
    apart = Change({"sharing": ["isolated"]}, "--sharing isolated")
    yield Cause(
        f"{role} is paid for the team's success, which one constant verdict earns as well",
        (local, *((apart,) if _shares_policy(run, role) else ()), _slower(run.settings, role)),
    )


def _shares_policy(run: RunData, role: str) -> bool:
    policy = policy_of(run, role)
    roles = {role_of(name) for name, other in run.policies.items() if other == policy}
    return len(roles) > 1


def _slower(settings: Mapping[str, Any], role: str) -> Change:
    rates = dict(word.split("=", 1) for word in settings.get("role_lr") or ())
    role = whole_role(role)
    if role in rates:
        rates[role] = f"{float(rates[role]) / 10:.1g}"
        pairs = [f"{name}={rate}" for name, rate in rates.items()]
        return Change({"role_lr": pairs}, f"--role-lr {' '.join(pairs)}")
    rates = written_values("lr", settings.get("lr"))
    lower = {name: f"{(rate or 1e-4) / 10:.1g}" for name, rate in rates.items()}
    plain, *pairs = [f"{name}={rate}" if name else rate for name, rate in lower.items()]
    value = [plain, *pairs] if pairs else float(plain)
    return Change({"lr": value}, f"--lr {' '.join([plain, *pairs])}")


def _rate(run: RunData, row: Mapping[str, Any]) -> float:
    rates = [value for name, value in row.items() if name.startswith("learn/lr/")]
    given = written_values("lr", run.settings.get("lr")).values()
    return float(max(rates or (rate or 0.0 for rate in given)))


# -- one thing to try -----------------------------------------------------------------------------


def is_accepted(run: RunData, change: Change) -> bool:
    """True if the run's settings with a change are accepted, and name no code that may not load."""
    try:
        check_permitted(run)
        outline_run(change_config(run.settings, change))
    except FlowzooError:
        return False
    return True


def change_config(settings: Mapping[str, object], change: Change) -> TrainConfig:
    """Settings of a run record with a change, as a config."""
    recorded = {name: value for name, value in settings.items() if name in FIELDS}
    return from_table({**recorded, **change.settings}, "the run's settings")


def command(run: RunData, change: Change) -> str:
    """Command that trains a run with one change, in another directory."""
    config = replace(change_config(run.settings, change), out="")
    names = [name for name in FIELDS if name not in ("workflow", "out")]
    line = ["flowzoo", "train", config.workflow, *arguments(config, names)]
    return shlex.join([*line, "--out", f"{run.folder.resolve().name}-again"])
