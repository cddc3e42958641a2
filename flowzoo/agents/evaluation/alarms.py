"""Alarms at the start: unreadable replies, truncated replies, groups without variance.

`flowzoo eval` prints them, and `flowzoo train` before it trains.
"""

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, median
from typing import NamedTuple

from flowzoo.agents.evaluation.intervals import share_interval
from flowzoo.agents.evaluation.summary import attempts_of, has_pay, mean
from flowzoo.envs import Call, EpisodeRecord
from flowzoo.envs.external.workflow import AECWorkflow
from flowzoo.reward.visible import visible

LOW = 0.1
"""Share of readable replies, or of groups that differ, below which there is an alarm."""
LOW_END = 1 / 3
"""Upper end of the interval of such a share, at most."""
CUT = 0.2
"""Share of replies cut off above which there is an alarm."""
CUT_END = 0.1
"""Lower end of the interval of such a share, at least."""
FEWEST = 8
"""Fewest replies for a large share, and fewest complete replies for an estimate."""
COVERED = 0.95
"""Share of replies that the estimated length lets end."""
FARTHEST = 4
"""Times the present limit beyond which an estimate is a guess."""

_HEAD, _TAIL = 56, 40
"""Characters of a quoted reply: of its beginning, and of its end, which has the answer."""
_ROUND = 32


class Alarm(NamedTuple):
    """Something to change before anything is trained."""

    cause: str
    """`unread/ROLE`, `truncation/ROLE`, `verdict/ROLE` (one verdict for everything), `endless` (no
    episode ends by itself), `nothing` (no group differs), `reward` (hardly any) or `unknown`
    (verdicts)."""
    text: str
    """The finding and its remedy, in one line."""


@dataclass(frozen=True, slots=True)
class Remedies:
    """Options that a user can change, as typed."""

    lengths: Sequence[str] = ()
    """Arguments of `--lengths`."""
    examples: bool = False
    """True if the roles are shown worked examples already."""
    warm_start: str = ""
    """Command that teaches the roles their formats; empty for external environments, which bring
    their own prompts."""
    options: Sequence[str] = ()
    """Arguments of `--options`."""


@dataclass(frozen=True, slots=True)
class RoleReplies:
    """Statistics of one role's replies."""

    role: str
    count: int
    strict: float
    """Share that could be read."""
    truncated: float
    """Share that was cut off."""
    ended: Sequence[int] = ()
    """Token counts of the complete replies."""
    limit: int | None = None
    """Tokens of the longest truncated reply; None: not counted."""
    unread: Sequence[Call] = field(default=(), repr=False)
    """Calls whose replies could not be read."""


def replies_of(calls: Iterable[Call]) -> list[RoleReplies]:
    """Statistics of every role; scripted replies, which no setting changes, are left out."""
    roles: dict[str, list[Call]] = {}
    for call in calls:
        if call.finish != "scripted":
            roles.setdefault(call.role, []).append(call)
    replies: list[RoleReplies] = []
    for role, played in sorted(roles.items()):
        whole = [call for call in played if call.finish != "length"]
        cut = [call.output_tokens or 0 for call in played if call.finish == "length"]
        strict = mean([float(call.strict) for call in played])
        ended = [call.output_tokens for call in whole if call.output_tokens]
        unread = [call for call in played if not call.strict]
        limit, share = max(cut, default=0) or None, len(cut) / len(played)
        replies.append(RoleReplies(role, len(played), strict, share, ended, limit, unread))
    return replies


def reply_alarms(roles: Iterable[RoleReplies], remedies: Remedies) -> list[Alarm]:
    """Alarms about replies: truncation first, since it may be why nothing is read."""
    alarms: list[Alarm] = []
    for replies in roles:
        if is_many(replies.truncated, replies.count):
            alarms.append(Alarm(f"truncation/{replies.role}", _cut_off(replies, remedies)))
        if is_low(replies.strict, replies.count):
            alarms.append(Alarm(f"unread/{replies.role}", _unread(replies, remedies)))
    return alarms


def group_alarm(groups: float, alike: float, score: float, remedy: str) -> Alarm | None:
    """The alarm about `groups` of which `alike` have equal rewards; `score` is the mean."""
    if not groups or not is_low(1 - alike / groups, groups):
        return None
    differing = f"{groups - alike:.0f} of {groups:.0f} groups have"
    if alike >= groups:
        differing = f"none of {groups:.0f} groups has"
    text = f"{differing} rewards that differ, and others teach nothing (mean {score:.2f}); {remedy}"
    return Alarm("nothing" if alike >= groups else "reward", text)


def endless_alarm(cut: float, truncated: float) -> Alarm | None:
    """The alarm about the shares of episodes that `max_steps` or the environment cut off."""
    if not max(cut, truncated) >= 1:  # NaN: no such episode
        return None
    limit = "--options max_steps=N" if cut == 1 else "the limit of the environment, which truncates"
    return Alarm("endless", f"no episode came to its end, all were cut off: raise {limit}")


def episode_alarms(records: Sequence[EpisodeRecord], remedies: Remedies) -> list[Alarm]:
    """The alarms of an evaluation; with several episodes of a problem, these are a group."""
    calls = (call for record in records for call in record.calls)
    alarms: list[Alarm | None] = [*reply_alarms(replies_of(calls), remedies)]
    groups = [group for group in attempts_of(records).values() if len(group) > 1]
    pays = has_pay(records)
    earned = [{tuple(r.returns.values()) if pays else r.score for r in group} for group in groups]
    alike = sum(len(different) == 1 for different in earned)
    score = mean([record.score for record in records])
    others = "" if pays else f"{other_problems(score, remedies.options)}, or "
    remedy = f"to train, take {others}more --samples"
    flat = group_alarm(len(groups), alike, score, remedy)
    played = [record.facts for record in records if record.workflow == AECWorkflow.name]
    ends = [mean([float(facts[name]) for facts in played]) for name in ("cut", "truncated")]
    alarms += [endless_alarm(*ends), flat]
    return [alarm for alarm in alarms if alarm is not None]


def other_problems(score: float, options: Sequence[str]) -> str:
    """Problems, or a start, to take in place of problems whose mean score is `score`."""
    if score >= 0.5:
        return "harder problems (--options level=N)"
    if "level=1" in options:  # there is no easier one
        return "a model that solves some (a warm start: flowzoo sft)"
    return "an easier level (--options level=1)"


def is_low(share: float, of: float) -> bool:
    """Return True if `share` of `of` cases is low for certain."""
    # It takes 8 cases without a hit, 13 with one. Calls count as independent, although calls of one
    # problem are not quite: an alarm is a hint, not a measurement.
    return of > 0 and share < LOW and share_interval(share, of).high < LOW_END


def is_many(share: float, of: float) -> bool:
    """Return True if `share` of `of` replies is large for certain."""
    return of >= FEWEST and share > CUT and share_interval(share, of).low > CUT_END


def own_budget(role: str, lengths: Sequence[str]) -> str:
    """The argument of `--lengths` with a role's reply budget, or an empty string."""
    return next((word for word in lengths if word.startswith(f"{role}=") and "/" in word), "")


def sufficient_length(ended: Sequence[int], limit: int, truncated: float) -> int | None:
    """Tokens within which `COVERED` of the replies would end, or None if unknown."""
    # The logarithms of lengths are taken for normal, fitted to two quantiles: the limit, which the
    # share `1 - truncated` is below, and the median of the replies that ended. Where most replies
    # are short and some never end, the estimate is too far off to be of use.
    if len(ended) < FEWEST or not 0 < truncated < 1:
        return None
    quantile = NormalDist().inv_cdf
    at_limit, at_median = quantile(1 - truncated), quantile((1 - truncated) / 2)
    spread = math.log(limit / min(limit, max(1.0, median(ended)))) / (at_limit - at_median)
    tokens = limit * math.exp(min(spread * (quantile(COVERED) - at_limit), math.log(2 * FARTHEST)))
    return None if tokens > FARTHEST * limit else math.ceil(tokens / _ROUND) * _ROUND


def warm_start_command(workflow: str, task: str | None, options: Sequence[str], model: str) -> str:
    """The command of a warm start on the same problems; empty without a workflow."""
    if not workflow:
        return ""
    args = ["flowzoo", "sft", workflow, *(["--task", task] if task else [])]
    args += ["--options", *options] if options else []
    return shlex.join([*args, "--model", model] if model else args)


def with_remedies(line: str, remedies: Remedies) -> str:
    """A line about a role that cannot do its job, with what would teach it."""
    if not remedies.warm_start:
        return line
    ways = [] if remedies.examples else ["show worked examples (--examples 4)"]
    return f"{line}; {' or '.join([*ways, f'warm up first ({remedies.warm_start})'])}"


def quote_reply(reply: str) -> str:
    """A reply on one line: its beginning and its end, with what is not printable escaped."""
    line = " ".join(visible(reply).split()) or " ".join(reply.split())
    line = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in line
    )
    if len(line) > _HEAD + _TAIL:
        line = f"{line[:_HEAD]} … {line[-_TAIL:]}"
    return f'"{line}"' if line else "an empty reply"


def _cut_off(replies: RoleReplies, remedies: Remedies) -> str:
    budget = own_budget(replies.role, remedies.lengths)

    option = f"--lengths {budget.partition('/')[0]}/" if budget else "--max-tokens "
    every = replies.truncated >= 1
    share = "all" if every else f"{100 * replies.truncated:.0f} % of"
    share += f" {replies.count}"
    line = f"{replies.role}: {share} replies ran into the length limit"
    if replies.limit is None:
        return f"{line}; raise {f'--lengths (now {budget})' if budget else '--max-tokens'}"
    line += f" of {replies.limit} tokens"
    tokens = sufficient_length(replies.ended, replies.limit, replies.truncated)
    if tokens:
        return (
            f"{line}; judging by the complete replies (median "
            f"{median(replies.ended):.0f}), {tokens} would do for {100 * COVERED:.0f} %: "
            f"{option}{tokens}"
        )
    why = "the complete replies do not tell how long the others would be"
    if every:
        why = "they are longer than that, by how much is not known"
    length = f"{option}{2 * replies.limit}"
    return f"{line}; {why}: try {length}, or --thinking off if the model thinks"


def _unread(replies: RoleReplies, remedies: Remedies) -> str:
    read = round(replies.strict * replies.count)
    line = f"{replies.role}: {read or 'none'} of {replies.count} replies could be read (strict)"
    if replies.unread:
        whole = [call for call in replies.unread if call.finish != "length"]
        line += f", e.g. {quote_reply((whole or replies.unread)[0].reply)}"
        if 2 * len(whole) < len(replies.unread):
            return f"{line}; most were cut off before their end: longer replies first"
    return with_remedies(line, remedies)
