"""Roles that stopped looking, and roles that died: what `diagnostics` finds of a run, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowzoo.agents.evaluation.intervals import ShareInterval
from flowzoo.baselines.diagnostics.checkers import (
    JUDGES,
    Chooser,
    JudgeShares,
    LoopValue,
    candidate_role,
    chooser,
    judges,
    loop_value,
)
from flowzoo.baselines.diagnostics.dead_roles import (
    SAME,
    RoleDeath,
    became_alone,
    became_constant,
    became_copy,
    best_steps,
    lost_skill,
    no_longer_asked,
)
from flowzoo.baselines.report.findings import Finding, between, listed, percent, points
from flowzoo.baselines.run.reading import RunData, read_episodes


def role_health(run: RunData) -> dict[str, Any]:
    """The tests of checking and of dead roles, as plain values.

    `why` says what is missing where the saved episodes do not allow them; judges are read off the
    metrics alone.
    """
    evaluations = run.evaluations
    facts: dict[str, Any] = {
        "judges": judges(evaluations), "chooser": None, "values": [], "deaths": [], "why": "",
    }  # fmt: skip
    if len(evaluations) < 2:
        return facts | {"why": f"it takes two evaluations and there are {len(evaluations)}"}
    files, steps = run.transcript_files("eval"), run.steps
    missing = [step for step in (steps[0], steps[-1]) if step not in files]
    if missing:
        return facts | {"why": f"the episodes of the evaluations at {missing} are not there"}
    first, last = read_episodes(files[steps[0]]), read_episodes(files[steps[-1]])
    facts["chooser"] = chooser(first, last)
    role = candidate_role(first)
    values = [(steps[0], loop_value(first, role)), (steps[-1], loop_value(last, role))]
    if all(value is not None for _, value in values):
        facts["values"] = values
    facts["deaths"] = _deaths(run, first, last)
    return facts


def _deaths(run: RunData, first: Sequence[Any], last: Sequence[Any]) -> list[RoleDeath]:
    roles = run.roles
    if len(roles) < 2:  # a team of one has nobody who could do without it
        return []
    files, steps = run.transcript_files("eval"), run.steps
    tests: list[RoleDeath | None] = [became_alone(first, last)]
    tops = best_steps(run.evaluations, roles)
    comparisons = len(roles) * (len(steps) - 1)
    for role in roles:
        place = tops.get(role)
        if place is not None and steps[place] in files:
            best = read_episodes(files[steps[place]])
            tests.append(lost_skill(best, last, role, steps[place], comparisons))
        tests.append(no_longer_asked(first, last, role))
        tests += [became_constant(first, last, role), became_copy(first, last, role)]
    return [test for test in tests if test is not None]


def role_health_findings(facts: dict[str, Any], gained: bool) -> list[Finding]:
    """The findings of `role_health`; `gained`: the team ended above step 0."""
    found = [judge_finding(judge) for judge in facts["judges"]]
    if facts["chooser"] is not None:
        found.append(chooser_finding(facts["chooser"]))
    if facts["values"]:
        found.append(value_finding(facts["values"]))
    if facts["deaths"]:
        found += death_findings(facts["deaths"], gained)
    return found


def judge_finding(judge: JudgeShares) -> Finding:
    """What a judging role does with right and with wrong things."""
    said = JUDGES[judge.role]
    parts = [
        f"{said[verb]} {_course(best, now)} of the {said[what]}"
        for what, verb, best, now in (
            ("right", "accepted", judge.best_tpr, judge.tpr),
            ("wrong", "rejected", judge.best_tnr, judge.tnr),
        )
        if now is not None
    ]
    text = f"At the last evaluation the {judge.role} {' and '.join(parts)}."
    if judge.accepts is not None:
        text += f" Of its readable verdicts {percent(judge.accepts)} accept"
        if judge.abstained:
            text += f"; {percent(judge.abstained)} of all could not be read"
        text += "."
    if judge.informed is not None:
        mean, low, high = judge.informed
        text += (
            f" What it knows, the sum of both shares less 1, is {mean:.2f} (95\u00a0% interval "
            f"{low:.2f} to {high:.2f}; 0: its verdict does not depend on what it judges)."
        ).replace("-", "−")
    if judge.verdict in ("rejects everything", "accepts everything"):
        text += (
            f" It was otherwise at step {judge.best_step}. Its verdict hardly depends on what it "
            "is shown any more; --role-kl or a smaller --lr for it keeps it from there."
        )
        return Finding("bad", f"The {judge.role} collapsed: it {judge.verdict}", text)
    if judge.verdict == "too few cases":
        return Finding("unknown", f"Too few verdicts of the {judge.role} to judge it", text)
    if judge.found_below is not None:
        text += (
            f" A share that had truly fallen to {percent(judge.found_below)} or less would be "
            "found with probability 0.8."
        )
    if judge.informed is not None and judge.informed[1] <= 0:
        return Finding("result", f"The {judge.role} cannot be told from chance", text)
    return Finding("good", f"The {judge.role} still looks", text)


def _course(best: ShareInterval | None, now: ShareInterval) -> str:
    before = "" if best is None else f"; {percent(best.share)} at the best evaluation before"
    return (
        f"{percent(now.share)} ({percent(now.low)} to {percent(now.high)}, n = {now.of:g}{before})"
    )


def chooser_finding(found: Chooser) -> Finding:
    """Whether choices go to one place whatever stands there."""
    text = (
        f"Place {found.place} of {found.candidates} has {percent(found.after.share)} of the "
        f"choices at the last evaluation (95\u00a0% interval {percent(found.after.low)} to "
        f"{percent(found.after.high)}, n = {found.after.of:g}) and had "
        f"{percent(found.before.share)} before training."
    )
    if found.collapsed:
        text += " It is chosen whatever stands there: the choice has become a single candidate."
        return Finding("bad", f"Choices collapsed onto place {found.place}", text)
    if found.always:
        text += " It was chosen so before training, too: the choice never was one."
        return Finding("result", f"Choices go to place {found.place} throughout", text)
    text += f" A place with {percent(found.found_above)} or more is found with probability 0.8."
    return Finding("good", "Choices depend on the candidates", text)


def value_finding(values: Sequence[tuple[int, LoopValue]]) -> Finding:
    """What the workflow adds to one of its members."""
    step, last = values[-1]
    alone = "its own first attempts" if last.over == "first attempt" else "a candidate at random"
    text = (
        f"At step {step} the team is right in {percent(last.team)} and {alone} in "
        f"{percent(last.alone)} of the same episodes: the rest of the workflow adds "
        f"{points(last.mean, sign=True)} points ({between(last.low, last.high)}, paired over "
        f"{last.n} problems; {points(last.findable)} would be found with probability 0.8)."
    )
    if values[0][0] != step:
        before = values[0][1]
        text += (
            f" Before training it added {points(before.mean, sign=True)} "
            f"({between(before.low, before.high)})."
        )
    if last.high < 0:
        return Finding("bad", f"The workflow is worse than {alone}", text)
    if last.low > 0:
        return Finding("good", f"The workflow is better than {alone}", text)
    return Finding("unknown", f"The workflow cannot be told from {alone}", text)


def death_findings(tests: Sequence[RoleDeath], gained: bool) -> list[Finding]:
    """One finding for every test that found something, or one that says what was looked for."""
    found = [_death(test, gained) for test in tests if test.found]
    if found:
        return found
    skills = [test for test in tests if test.kind == "skill"]
    parts = [f"{test.role} {points(test.findable or 0)}" for test in skills]
    text = (
        "No role lost half of its skill, is no longer asked, or gives the same or another's reply "
        f"whatever the problem; and right answers still come with right candidates. {len(tests)} "
        "tests"
    )
    if parts:
        text += f"; falls of own accuracy found with probability 0.8: {listed(parts)} points"
    return [Finding("good", "No role is dead", f"{text}.")]


def _death(test: RoleDeath, gained: bool) -> Finding:
    meanwhile = " while the team gained" if gained else ""
    levels = f"{percent(test.before)} to {percent(test.after)}"
    shown = (
        f"{points(test.change, sign=True)} points, interval {points(test.low, sign=True)} to "
        f"{points(test.high, sign=True)}; n = {test.n}"
    )
    if test.kind == "skill":
        text = (
            f"The own accuracy of {test.role}, in its first replies, went from {levels} between "
            f"step {test.step}, its best, and the end ({shown}; over all roles and evaluations "
            f"together). A fall of {points(test.findable or 0)} points is found with "
            f"probability 0.8. Pay it for its own work (credit=local), or freeze it."
        )
        return Finding("bad", f"{test.role} lost its skill{meanwhile}", text)
    if test.kind == "unasked":
        text = f"{test.role} was asked in {levels} of the episodes, before training and now"
        return Finding("bad", f"Nobody asks {test.role} any more", f"{text} ({shown}).")
    power = "" if test.findable is None else f" {percent(test.findable)} is found with p = 0.8."
    if test.kind == "constant":
        text = f"Its most frequent reply went from {levels} of its replies ({shown}).{power}"
        return Finding("bad", f"{test.role} says the same to every problem", text)
    if test.kind == "copy":
        text = (
            f"The share of its replies that repeat another agent's word for word went from "
            f"{levels} ({shown}).{power}"
        )
        return Finding("bad", f"{test.role} became a copy of {test.other}", text)
    text = (
        f"Of the team's right answers the share without any right candidate went from {levels} "
        f"({shown}): {test.other} answers without the others.{power} At least {percent(SAME)} "
        "count as alone."
    )
    return Finding("bad", f"The team became a single agent: {test.other}", text)
