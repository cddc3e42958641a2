"""Findings on replies: lost form, loops, replies that fit no prompt, length and entropy."""

from collections.abc import Iterator

import numpy as np

from flowzoo.baselines.diagnostics.roles import RoleTest, began_looping, fits_no_prompt, lost_form
from flowzoo.baselines.report.by_policy import by_policy, part_name, run_by_policy, split_roles
from flowzoo.baselines.report.findings import Facts, Finding, RunFindings, metric_series
from flowzoo.baselines.report.words import between, is_finite, join_words, percent
from flowzoo.baselines.run.reading import RunData, end_episodes

LONGER, SHORTER = 2.0, 0.5  # change of the mean length that is reported
NO_ENTROPY = 0.1  # share of the first entropy below which hardly anything is explored
ENTROPY = "sampled_entropy/"  # prefix of the metric, before ROLE/POLICY
WINDOW = 3  # measured steps at either end that entropies are means over


def replies(run: RunData, _: Facts) -> RunFindings:
    """Report changes of the roles' replies."""
    parts = run_by_policy(run)
    failures = [_failure(test, run.pays) for test in _tests(run, parts) if test and test.positive]
    return RunFindings(findings=[*failures, *_lengths(parts), *_entropies(run)])


def _tests(run: RunData, parts: RunData) -> Iterator[RoleTest | None]:
    comparisons = len(parts.roles) * max(1, len(parts.evaluations) - 1)
    for role in parts.roles if len(parts.evaluations) > 1 else ():
        yield lost_form(parts.evaluations, role, comparisons)
    ends = end_episodes(run)
    if ends is None:
        return
    first, last = (by_policy(run, episodes) for episodes in ends)
    for role in parts.roles:
        loops = began_looping(first, last, role)
        yield loops
        if not run.pays and not (loops and loops.positive):
            yield fits_no_prompt(first, last, role)


def _failure(test: RoleTest, pays: bool) -> Finding:
    before, after, ends = percent(test.before), percent(test.after), between(test.low, test.high)
    if test.kind == "lost form":
        title = f"The replies of {test.role} became unreadable"
        text = (
            f"The strict parser read {before} of its replies at step {test.step}, the best "
            f"evaluation, and reads {after} at the end ({ends})."
        )
        if not pays:
            text += " What cannot be read earns nothing and says nothing to the other roles."
    elif test.kind == "loops":
        title = f"{test.role} repeats itself"
        text = (
            f"In {after} of its replies one text is repeated over half of the reply; before "
            f"training in {before} ({ends})."
        )
    else:
        title = f"The replies of {test.role} no longer depend on the problem"
        text = (
            f"By the rare words and numbers of a reply its own problem was found among {test.n} "
            f"for {before} of the replies before training, and is found for {after} now ({ends}); "
            "nearly all of its replies are wrong."
        )
    return Finding("bad", title, text, test.kind, test.role)


def _lengths(run: RunData) -> list[Finding]:
    parts: list[str] = []
    for role in run.roles:
        name = f"eval/tokens/{role}"
        lengths = [row[name] for row in run.evaluations if is_finite(row.get(name))]
        compared = len(lengths) > 1 and lengths[0] > 0
        if compared and not SHORTER < lengths[-1] / lengths[0] < LONGER:
            parts.append(f"{role} {lengths[0]:.0f} to {lengths[-1]:.0f}")
    text = f"Mean tokens of a reply at the first and the last evaluation: {'; '.join(parts)}."
    return [Finding("result", "Replies have another length", text)] if parts else []


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
    text = (
        f"Entropy of the sampled tokens, first and last {WINDOW} measured steps: "
        f"{join_words(parts)}. Replies to one problem hardly differ any more, so there is little "
        "left to compare."
    )
    return [Finding("result", "Little is explored by now", text)] if parts else []
