"""Checks of what authors forget: a `yield`, a `return`, and scores that a credit rule needs."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.episode.recording import agent_pay
from flowzoo.envs.script import RESULTS, Ask, InterimScore, Outcome, RoleScore
from flowzoo.envs.testing.playthrough import (
    expert_episodes,
    method_place,
    play_out,
    problem_at,
    require,
)
from flowzoo.envs.workflow import Workflow

ITEMS = frozenset({Ask, RoleScore, InterimScore, Outcome, *RESULTS})
"""Classes whose instances do nothing until a script yields or returns them."""
SET = "whose order differs between processes: write a tuple, or sorted(...)"
EPISODES = 4
"""Episodes of experts, and of random replies, whose role scores are counted."""
Scored = Literal["every reply", "some replies", "no reply"]


class CreditTraits(NamedTuple):
    """Scores of a workflow's replies, and ways to train it; `str()` says both in three lines."""

    scored: Mapping[str, Scored]
    """Replies with a role score, or with pay, by role."""
    pays: bool
    """True if scores are pay: reports then name no reply right."""
    credits: tuple[str, ...]
    """Values of `credit` that no episode refuses."""
    branches: bool
    """True if algorithms that branch episodes can play it."""

    def __str__(self) -> str:
        scored = ", ".join(f"{role} {replies}" for role, replies in self.scored.items())
        kind = "pay" if self.pays else "truth"
        lines = [f"scores ({kind}): {scored}", f"credit: {', '.join(self.credits)}"]
        several = len(self.credits) > 1
        rest = "; with a credit other than team, none of target `episode`" if several else ""
        which = "all" if self.branches else "those of sampling `episodes`"
        lines.append(f"algorithms (see `flowzoo algorithms`): {which}{rest}")
        return "\n".join(lines)


def credit_traits(workflow: Workflow) -> CreditTraits:
    """Play some episodes, and see which of their replies have scores."""
    counts: dict[str, list[bool]] = {}
    episodes = [*expert_episodes(workflow, EPISODES, 0.5), *_random_episodes(workflow)]
    for episode in episodes:
        paid = episode.finished().payoffs is not None
        for turn in episode.turns:
            role = workflow.agents[turn.agent][0]
            counts.setdefault(role, []).append(paid or turn.call in episode.role_scores)
    scored: dict[str, Scored] = {
        role: "every reply" if all(has) else "some replies" if any(has) else "no reply"
        for role, has in counts.items()
    }
    rules = ("local", "mix") if all(has == "every reply" for has in scored.values()) else ()
    rubric = ("rubric",) if type(workflow).rubric is not Workflow.rubric else ()
    pays = any(map(agent_pay, episodes))
    return CreditTraits(scored, pays, ("team", *rules, *rubric), workflow.replayable)


def check_credit(workflow: Workflow) -> None:
    """Check that every reply has the score that the workflow's `credit` needs."""
    if workflow.credit in ("local", "mix"):
        lacking = [
            f"{role} ({replies})"
            for role, replies in credit_traits(workflow).scored.items()
            if replies != "every reply"
        ]
        require(
            not lacking,
            f"credit={workflow.credit!r} needs a score of every reply, and these roles lack some: "
            f"{', '.join(lacking)}; yield Grade(answer, of=reply) or RoleScore(reply, value) for "
            'each, return Payoffs, or use credit="team"',
        )


def check_methods(workflow: Workflow) -> None:
    """Check that experts and samples are texts, and that episodes share nothing that changes."""
    cls, samples = type(workflow), workflow.samples()
    require(
        isinstance(samples, (tuple, list)) and all(isinstance(text, str) for text in samples),
        f"{method_place(cls.samples)}: samples() must return a tuple of texts, got {samples!r:.60}",
    )
    for number, episode in enumerate(expert_episodes(workflow, EPISODES, 0.5)):
        for name, value in episode.finished().facts.items():
            require(
                value == value,
                f"{method_place(cls.play)}: the fact {name!r} is {value!r}, which equals nothing: "
                "leave it out",
            )
        require(
            repr(episode.problem.meta) == repr(problem_at(workflow, number).meta),
            f"{method_place(cls.play)}: play() changes problem.meta, which all episodes of the "
            "problem share",
        )


def _random_episodes(workflow: Workflow) -> Iterator[Episode]:
    for number in range(EPISODES):
        yield play_out(Episode(workflow, problem_at(workflow, number)), "credit", number)


def check_yields(workflow: Workflow) -> None:
    """Check that no item is made and then dropped for lack of a `yield` or `return`.

    The same of a helper that is a generator. No loop may follow the order of a set, which is
    another one in another process. Classes without source, as of a console, pass.
    """
    for cls in type(workflow).__mro__:
        if cls is Workflow:
            break
        try:
            lines, first = inspect.getsourcelines(cls)
        except (OSError, TypeError):
            continue
        file = Path(inspect.getsourcefile(cls) or "").name
        tree = ast.parse(textwrap.dedent("".join(lines)))
        for node in ast.walk(tree):
            fault, where = "", getattr(node, "lineno", 1)
            if isinstance(node, ast.Expr):
                fault = _dropped(node.value, cls)
            elif isinstance(node, (ast.For, ast.comprehension)) and _is_set(node.iter):
                fault, where = f"{ast.unparse(node.iter)} is a set, {SET}", node.iter.lineno
            require(not fault, f"{file}, line {first + where - 1}: {fault}")


def _is_set(value: ast.expr) -> bool:
    function = value.func if isinstance(value, ast.Call) else None
    called = function.id if isinstance(function, ast.Name) else ""
    return isinstance(value, (ast.Set, ast.SetComp)) or called in ("set", "frozenset")


def _dropped(value: ast.expr, cls: type) -> str:
    # What is wrong with an expression whose value is dropped; empty: nothing.
    call = value.elt if isinstance(value, ast.ListComp) else value
    call = call.elts[0] if isinstance(call, (ast.List, ast.Tuple)) and call.elts else call
    if not isinstance(call, ast.Call):
        return ""
    target: Any = call.func
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        helper = getattr(cls, target.attr, None) if target.value.id == "self" else None
        if inspect.isgeneratorfunction(helper):
            name = f"self.{target.attr}(...)"
            return f"{name} is a generator and never runs: write `yield from {name}`"
    name = target.id if isinstance(target, ast.Name) else ""
    item = vars(sys.modules[cls.__module__]).get(name)
    if item not in ITEMS:
        return ""
    verb = "return" if item is Outcome else "yield"
    return f"{name}(...) is made and dropped: write `{verb} {name}(...)`"
