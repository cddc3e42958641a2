"""Findings on replies: lost form, loops, replies that fit no prompt, length and entropy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowzoo.baselines.diagnostics.replies import (
    ShareShift,
    began_looping,
    fits_no_prompt,
    lost_form,
)
from flowzoo.baselines.report.by_policy import by_policy, part_name, run_by_policy, split_roles
from flowzoo.baselines.report.findings import (
    Facts,
    Finding,
    RunFindings,
    between,
    is_finite,
    join_words,
    metric_series,
    percent,
)
from flowzoo.baselines.run.reading import RunData, end_episodes

LONGER, SHORTER = 2.0, 0.5  # change of the mean length that is reported
NO_ENTROPY = 0.1  # share of the first entropy below which hardly anything is explored
ENTROPY = "sampled_entropy/"  # prefix of the metric, before ROLE/POLICY
WINDOW = 3  # measured steps at either end that entropies are means over


def replies(run: RunData, _: Facts) -> RunFindings:
    """Report changes of the roles' replies."""
    parts = run_by_policy(run)
    findings = [*_forms(parts), *_texts(run, parts.roles), *_lengths(parts), *_entropies(run)]
    return RunFindings(findings=findings)


def _forms(run: RunData) -> list[Finding]:
    comparisons = len(run.roles) * max(1, len(run.evaluations) - 1)
    findings: list[Finding] = []
    for role in run.roles if len(run.evaluations) > 1 else ():
        shift = lost_form(run.evaluations, role, comparisons)
        if shift is not None and shift.called:
            text = (
                f"The strict parser read {percent(shift.before)} of its replies at step "
                f"{shift.step}, the best evaluation, and reads {percent(shift.after)} at the end "
                f"({_interval(shift)})."
            )
            if not run.pays:
                text += " What cannot be read earns nothing and says nothing to the other roles."
            title = f"The replies of {role} became unreadable"
            findings.append(Finding("bad", title, text, "lost form", role))
    return findings


def _texts(run: RunData, names: Sequence[str]) -> list[Finding]:
    ends = end_episodes(run)
    if ends is None:
        return []
    first, last = (by_policy(run, episodes) for episodes in ends)
    findings: list[Finding] = []
    for role in names:
        loops = began_looping(first, last, role)
        if loops is not None and loops.called:
            text = (
                f"In {percent(loops.after)} of its replies one text is repeated over half of the "
                f"reply; before training in {percent(loops.before)} ({_interval(loops)})."
            )
            title = f"{role} repeats itself"
            findings.append(Finding("bad", title, text, "loops", role))
            continue
        strayed = None if run.pays else fits_no_prompt(first, last, role)
        if strayed is not None and strayed.called:
            text = (
                "By the rare words and numbers of a reply its own problem was found among "
                f"{strayed.n} for {percent(strayed.before)} of the replies before training, and is "
                f"found for {percent(strayed.after)} now ({_interval(strayed)}); nearly all of its "
                "replies are wrong."
            )
            title = f"The replies of {role} no longer depend on the problem"
            findings.append(Finding("bad", title, text, "fits no prompt", role))
    return findings


def _lengths(run: RunData) -> list[Finding]:
    parts: list[str] = []
    for role in run.roles:
        name = f"eval/tokens/{role}"
        lengths = [row[name] for row in run.evaluations if is_finite(row.get(name))]
        if len(lengths) > 1 and lengths[0] > 0:
            ratio = lengths[-1] / lengths[0]
            if ratio >= LONGER or ratio <= SHORTER:
                parts.append(f"{role} {lengths[0]:.0f} to {lengths[-1]:.0f}")
    if not parts:
        return []
    text = f"Mean tokens of a reply at the first and the last evaluation: {'; '.join(parts)}."
    return [Finding("result", "Replies have another length", text)]


def _entropies(run: RunData) -> list[Finding]:
    parts: list[str] = []
    split = split_roles(run)
    for name, points in metric_series(run, ENTROPY).items():
        role, policy = name.split("/")
        values = [value for _, value in points]
        if len(values) >= 2 * WINDOW:
            first, last = np.mean(values[:WINDOW]), np.mean(values[-WINDOW:])
            if first > 0 and last < NO_ENTROPY * first:
                agents = part_name(role, policy) if role in split else role
                parts.append(f"{agents} {first:.2g} to {last:.2g} nats a token")
    if not parts:
        return []
    text = (
        f"Entropy of the sampled tokens, first and last {WINDOW} measured steps: "
        f"{join_words(parts)}. Replies to one problem hardly differ any more, so there is little "
        "left to compare."
    )
    return [Finding("result", "Little is explored by now", text)]


def _interval(shift: ShareShift) -> str:
    return between(shift.low, shift.high)
