"""Checks of what authors forget: a `yield`, a version, and scores that a credit rule needs."""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Literal, NamedTuple

from flowzoo.envs.api.registry import WORKFLOWS, workflow_class
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
from flowzoo.errors import unknown

ITEMS = frozenset({Ask, RoleScore, InterimScore, Outcome, *RESULTS})
"""Classes whose instances do nothing until a script yields or returns them."""
SET = "whose order differs between processes: write a tuple, or sorted(...)"
EPISODES = 4
"""Episodes of experts, and of random replies, whose role scores are counted."""
STOPPED = (
    "an episode that is stopped raises GeneratorExit at its `yield`: write `except Exception`, and "
    "no `yield` in `finally`"
)
Scored = Literal["every reply", "some replies", "no reply", "never asked"]


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
    counts: dict[str, list[bool]] = {role: [] for role in workflow.role_counts()}
    episodes = [*expert_episodes(workflow, EPISODES, 0.5)]
    for number in range(EPISODES):
        episodes.append(play_out(Episode(workflow, problem_at(workflow, number)), "credit", number))
    for episode in episodes:
        paid = episode.finished().payoffs is not None
        for turn in episode.turns:
            role = workflow.agents[turn.agent][0]
            counts[role].append(paid or turn.call in episode.role_scores)
    scored: dict[str, Scored] = {role: _score_coverage(has) for role, has in counts.items()}
    rules = () if lacking_scores(scored) else ("local", "mix")
    rubric = ("rubric",) if type(workflow).rubric is not Workflow.rubric else ()
    pays = any(map(agent_pay, episodes))
    return CreditTraits(scored, pays, ("team", *rules, *rubric), workflow.replayable)


def _score_coverage(has: list[bool]) -> Scored:
    if not has:
        return "never asked"
    return "every reply" if all(has) else "some replies" if any(has) else "no reply"


def lacking_scores(scored: Mapping[str, Scored]) -> list[str]:
    """Roles with replies that have no score, and which ones."""
    lacking = ("some replies", "no reply")
    return [f"{role} ({replies})" for role, replies in scored.items() if replies in lacking]


def check_declared(workflow: Workflow) -> None:
    """Check what the class declares: its name, settings, and roles with tools."""
    cls, name = type(workflow), workflow.name
    require(
        re.fullmatch(r"[a-z][a-z0-9_]*_v[0-9]+", name) is not None,
        f"the name must be small letters, digits and _ with a version, as debate_v0; got {name!r}",
    )
    require(
        name not in WORKFLOWS or issubclass(cls, workflow_class(name)),
        f"the name {name} is of a workflow of flowzoo: take another one",
    )
    for role in workflow.role_counts():
        require(role.isidentifier(), f"a role is a word of letters, digits and _, got {role!r}")
    for role in workflow.tool_roles:
        if role not in workflow.role_counts():
            raise unknown(f"role in `tool_roles` of {name}", role, workflow.role_counts())
    settings = {*inspect.get_annotations(Workflow), *(field.name for field in fields(workflow))}
    for kind in cls.__mro__[: cls.__mro__.index(Workflow)]:
        initializer = vars(kind).get("__post_init__")
        require(
            initializer is None or "__post_init__" in initializer.__code__.co_names,
            f"{kind.__name__}.__post_init__() must call super().__post_init__()",
        )
        for setting, hint in inspect.get_annotations(kind).items():
            require(
                setting in settings or "ClassVar" in str(hint),
                f"{kind.__name__}.{setting} is no setting, since {kind.__name__} is no dataclass: "
                "write @dataclass(frozen=True) above the class",
            )


def check_credit(workflow: Workflow) -> None:
    """Check that every reply has the score that the workflow's `credit` needs."""
    if workflow.credit in ("local", "mix"):
        lacking = lacking_scores(credit_traits(workflow).scored)
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
    if workflow.needs_judge:  # an unreadable verdict has no score
        for _ in expert_episodes(replace(workflow, judge=lambda _: ""), EPISODES, 0.5):
            pass


def check_yields(workflow: Workflow) -> None:
    """Check that no item is made and then dropped for lack of a `yield` or `return`.

    The same of a helper that is a generator. No loop may follow the order of a set, which is
    another one in another process; no script may keep a value in the workflow, which all episodes
    share, or catch the end of an episode. Classes without source, as of a console, pass.
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
            source: object = node
            fault = ""
            if isinstance(node, ast.Expr):
                fault = _find_dropped_yield(node.value, cls)
            elif isinstance(node, (ast.For, ast.comprehension)) and _is_set(node.iter):
                fault, source = f"{ast.unparse(node.iter)} is a set, {SET}", node.iter
            elif isinstance(node, ast.Try) and _catches_end(node):
                fault = STOPPED
            elif isinstance(node, ast.FunctionDef) and (store := _shared_store(node)):
                fault = f"all episodes share {ast.unparse(store)}: keep the value in a variable"
                source = store
            line = first + getattr(source, "lineno", 1) - 1
            require(not fault, f"{file}, line {line}: {fault}")


def _yields(nodes: Iterable[ast.AST]) -> bool:
    inner = (each for node in nodes for each in ast.walk(node))
    return any(isinstance(each, (ast.Yield, ast.YieldFrom)) for each in inner)


def _catches_end(block: ast.Try) -> bool:
    # True if GeneratorExit, which ends a script early, would not leave it.
    caught = [
        handler.type is None or re.search("BaseException|GeneratorExit", ast.unparse(handler.type))
        for handler in block.handlers
        if not isinstance(handler.body[-1], ast.Raise)
    ]
    return (any(caught) and _yields(block.body)) or _yields(block.finalbody)


def _shared_store(function: ast.FunctionDef) -> ast.expr | None:
    # What a generator assigns to an attribute of its workflow.
    if not _yields(function.body):
        return None
    stores = (
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    )
    return next((node for node in stores if ast.unparse(node.value) == "self"), None)


def _is_set(value: ast.expr) -> bool:
    function = value.func if isinstance(value, ast.Call) else None
    called = function.id if isinstance(function, ast.Name) else ""
    return isinstance(value, (ast.Set, ast.SetComp)) or called in ("set", "frozenset")


def _find_dropped_yield(value: ast.expr, cls: type) -> str:
    # What is wrong with an expression whose value is dropped; empty: nothing.
    call = value.elt if isinstance(value, ast.ListComp) else value
    call = call.elts[0] if isinstance(call, (ast.List, ast.Tuple)) and call.elts else call
    if not isinstance(call, ast.Call):
        return ""
    target: object = call.func
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
