"""Mistakes of authors: each is refused, with file and line where there is one."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowzoo.envs import make_workflow
from flowzoo.envs.testing import check_workflow, credit_traits
from flowzoo.envs.testing.playthrough import expert_episodes

SOUND = '''
import itertools
import os
import random
from typing import ClassVar

import numpy as np

from flowzoo.envs import (
    Ask, EquivalenceClasses, Grade, InterimScore, Judge, Outcome, Payoffs, RoleScore, Run, Search,
    Tool, UseTool, Workflow,
)

ASKED, SEEN = itertools.count(), {}
TOOL = Tool("size", "The size.", {"type": "object", "properties": {}})


def read(text):
    """1 or 2, or None."""
    return text.strip() if text.strip() in ("1", "2") else None


class Mine(Workflow):
    """Two solvers, and one who picks."""

    name = "mine_v0"
    roles: ClassVar = {"solver": 2, "picker": 1}

    def play(self, problem):
        """A phase, grades, a choice."""
        prompt = self.task.prompt(problem)
        drafts = yield [Ask(f"solver_{i}", prompt, self.task.answer) for i in range(2)]
        grades = yield [Grade(draft.strict, of=draft) for draft in drafts]
        pick = yield Ask("picker_0", "Which, 1 or 2?", read)
        yield from self.score(pick, grades)
        number = int(pick.strict or 1) - 1
        return Outcome(drafts[number].strict, grades[number].score, {"picked": number})

    def score(self, pick, grades):
        """The picker's own score."""
        yield RoleScore(pick, 0.0 if pick.strict is None else grades[int(pick.strict) - 1].score)

    def expert(self, role, messages, problem, rng, right):
        """The first."""
        return "1" if role == "picker" else self.task.solve(problem, rng, right)

    def samples(self):
        """Picks, too."""
        return (*self.task.samples(), "1", "2")
'''

NAME = '    name = "mine_v0"\n'
PHASE = "        drafts = yield [Ask("
PICK = '        pick = yield Ask("picker_0", "Which, 1 or 2?", read)\n'
TRY = f"        try:\n    {PICK}"
SCORE = "        yield from self.score(pick, grades)\n"
END = '        return Outcome(drafts[number].strict, grades[number].score, {"picked": number})\n'
OUTCOME = "{}        return Outcome(drafts[0].strict, {})\n"


def before_end(line: str) -> tuple[str, str]:
    """A line before the end of the script."""
    return END, f"        {line}\n{END}"


def end(outcome: str) -> tuple[str, str]:
    """Another end of the script."""
    return END, f"        return {outcome}\n"


MISTAKES: dict[str, tuple[str, str, str, str]] = {
    # name: (what is replaced, by what, the message, text of the line that is named; "": none); an
    # @ is between several replacements
    "a score without yield": (
        "yield RoleScore(pick, 0.0 ", "RoleScore(pick, 0.0 ",
        r"RoleScore\(\.\.\.\) is made and dropped: write `yield RoleScore", "RoleScore(pick",
    ),
    "an outcome without return": (
        END, END.replace("return ", ""), r"write `return Outcome\(", "Outcome(drafts",
    ),
    "a list of grades without yield": (
        *before_end("[Grade(draft.strict, of=draft) for draft in drafts]"),
        r"Grade\(\.\.\.\) is made and dropped: write `yield Grade",
        "[Grade(draft.strict, of=draft) for draft in drafts]\n        return",
    ),
    "a helper without yield from": (
        SCORE, SCORE.replace("yield from ", ""),
        r"self\.score\(\.\.\.\) is a generator and never runs: write `yield from",
        "self.score(pick",
    ),
    "a tuple of asks without yield": (
        *before_end('(Ask("picker_0", "Again?"), Ask("solver_0", "Again?"))'),
        r"Ask\(\.\.\.\) is made and dropped", '(Ask("picker_0", "Again',
    ),
    "an ask without yield": (
        PICK, PICK.replace("yield ", ""), r"only what `yield Ask\(\.\.\.\)` returns has that",
        "yield RoleScore(pick",
    ),
    "no generator": (
        SOUND[SOUND.index("        prompt ="):SOUND.index("    def score")],
        "        return Outcome(score=1.0)\n\n", "play.. must be a generator", "def play",
    ),
    "no outcome": (END, "", "must return an Outcome, got NoneType", "def play"),
    "a plain score as outcome": (*end("1.0"), "must return an Outcome, got float", "def play"),
    "an unknown agent": (
        PICK, PICK.replace("picker_0", "picker_7"), "unknown agent 'picker_7'",
        'pick = yield Ask("picker_7"',
    ),
    "an agent twice in a phase": (
        'f"solver_{i}"', '"solver_0"', "only once in a phase", PHASE.strip(),
    ),
    "a prompt that is a number": (
        '"Which, 1 or 2?"', "12", "the prompt of picker_0 must be a str or a list",
        'pick = yield Ask("picker_0", 12',
    ),
    "an empty phase": (*before_end("yield []"), "got an empty list", "yield []"),
    "asks and effects in one list": (
        *before_end('yield [Ask("picker_0", "?"), Grade("1")]'), "got Ask, Grade",
        'yield [Ask("picker_0", "?")',
    ),
    "a text yielded": (*before_end('yield "done"'), "got str", 'yield "done"'),
    "a score above the range": (
        *end("Outcome(score=2.0)"), "must be from 0 to 1, got 2.0", "def play",
    ),
    "a score that is a text": (*end('Outcome(score="1")'), "must be a number, got str", "def play"),
    "a score that is NaN": (
        *end('Outcome(score=float("nan"))'), "must be from 0 to 1, got nan", "def play",
    ),
    "an answer that is a number": (
        *end("Outcome(answer=3, score=1.0)"), "must be a str or None, got int", "def play",
    ),
    "a fact that is an object": (
        *end('Outcome(score=1.0, facts={"x": object()})'), "facts are plain values", "def play",
    ),
    "facts in a list": (
        *end("Outcome(score=1.0, facts=[1])"), "must be a mapping, got list", "def play",
    ),
    "a role score above 1": (
        *before_end("yield RoleScore(pick, 3.0)"), "takes a Reply and a number in",
        "yield RoleScore(pick, 3.0)",
    ),
    "two role scores of a reply": (
        *before_end("yield RoleScore(pick, 0.5)"), "picker_0 has two role scores",
        "RoleScore(pick, 0.5)",
    ),
    "a reply of an earlier episode": (
        *before_end("yield RoleScore(SEEN.setdefault(0, drafts[0]), 0.5)"),
        "RoleScore is about a reply of solver_0 that this episode does not have",
        "RoleScore(SEEN",
    ),
    "a role score of a text": (
        *before_end("yield RoleScore(pick.text, 1.0)"), "takes a Reply and a number in",
        "yield RoleScore(pick.text",
    ),
    "an interim score below 0": (
        *before_end("yield InterimScore(-1.0)"), "InterimScore takes a number in",
        "yield InterimScore(-1",
    ),
    "a grade of a number": (
        *before_end("yield Grade(7)"), r"takes str \| None, got int", "yield Grade(7)",
    ),
    "a grade of a text's reply": (
        *before_end('yield Grade("7", of="x")'), r"Grade\(of=...\) takes Reply", "yield Grade(",
    ),
    "classes of a list": (
        *before_end('yield EquivalenceClasses(["1"])'), r"takes tuple\[.*\], got list",
        "yield EquivalenceClasses",
    ),
    "a parser that raises": (
        PICK, PICK.replace("read)", "int)"), "the parser of picker_0 raised ValueError",
        PICK.strip()[:25],
    ),
    "randomness": (
        '"Which, 1 or 2?"', 'f"Which? {random.random()}"', "a copy has|DivergedError", "",
    ),
    "a count over episodes": (
        '"Which, 1 or 2?"', 'f"Which? {next(ASKED)}"', "a copy has|DivergedError", "",
    ),
    "the gold answer in a prompt": (
        '"Which, 1 or 2?"', 'f"Which? It is {problem.gold}."', "shown the gold answer", "",
    ),
    "a course that depends on grades": (
        PICK,
        f"        if grades[0].score == 1.0:\n            yield Ask('solver_0', 'Again.')\n{PICK}",
        "depends on grades", "",
    ),
    "asks without end": (
        PICK, f"        while True:\n    {PICK}", "has made 1,000 calls and did not end",
        'pick = yield Ask("picker_0"',
    ),
    "effects without end": (
        PICK, f"        while True:\n            yield Grade('1')\n{PICK}",
        "effects or notes since its last call",
        "yield Grade('1')",
    ),
    "programs that are not declared": (
        *before_end('yield Run("print(1)")'), "set `runs_programs = True`", "yield Run(",
    ),
    "a judge that is not declared": (
        *before_end('yield Judge(pick, "Clear?")'), "set `asks_judge = True`", "yield Judge(",
    ),
    "tools that are not declared": (
        PICK, PICK.replace("read)", "read, tools=(TOOL,))"), r"set `tool_roles = \('picker',\)`",
        PICK.strip()[:25],
    ),
    "pay that names too few": (
        *end('Outcome(payoffs=Payoffs({"solver_0": 1.0}))'), "must name every agent", "def play",
    ),
    "pay of text": (
        *end('Outcome(payoffs=Payoffs(dict.fromkeys(self.agents, "1")))'),
        "the pay of solver_0 must be a finite number", "def play",
    ),
    "pay below the range": (
        *end("Outcome(payoffs=Payoffs(dict.fromkeys(self.agents, -1.0)))"),
        "declare another range as score_range", "def play",
    ),
    "an expert without return": (
        'return "1" if role', '"1" if role', r"expert\(\) must return a text, got NoneType",
        "def expert",
    ),
    "samples that are a text": (
        'return (*self.task.samples(), "1", "2")', 'return ("1")',
        r"samples\(\) must return a tuple of texts, got '1'", "def samples",
    ),
    "kinds that are a text": (
        NAME, f'{NAME}    kinds = "math"\n', r"`kinds` of mine_v0 must be a tuple.*\('math',\)", "",
    ),
    "tool roles that are a text": (
        NAME, f'{NAME}    tool_roles = "picker"\n', "`tool_roles` of mine_v0 must be a tuple", "",
    ),
    "a count that is a text": (
        '{"solver": 2', '{"solver": "2"', "role 'solver': expected 1 to 1000 agents, got '2'", "",
    ),
    "agents in the order of a set": (
        "for i in range(2)]\n        grades", "for i in {0, 1}]\n        grades",
        r"\{0, 1\} is a set, whose order differs between processes", PHASE.strip(),
    ),
    "a loop over a set of replies": (
        *before_end("for _ in set(drafts): pass"), r"set\(drafts\) is a set", "for _ in set(",
    ),
    "a problem that is changed": (
        PICK, f'        problem.meta["seen"] = True\n{PICK}', "changes problem.meta", "def play",
    ),
    "a fact that is no number": (
        *end('Outcome(score=1.0, facts={"x": float("nan")})'), "the fact 'x' is nan", "def play",
    ),
    "an unknown wording": (
        '"Which, 1 or 2?"', 'self.wording("pick")', r"raised KeyError\('pick'\)",
        PICK.strip()[:25],
    ),
    "braces in a wording": (
        '"Which, 1 or 2?"', '"Which, {{{1}}} or {n}?".format(n=2)', "raised IndexError",
        PICK.strip()[:25],
    ),
    "no answer taken for one": (
        "int(pick.strict or 1)", "int(pick.strict)", "raised TypeError", "number = int(",
    ),
    "an index beyond the drafts": (
        "int(pick.strict or 1) - 1", "int(pick.strict or 1)", "raised IndexError",
        "return Outcome(drafts[",
    ),
    "a list in a list": (
        *before_end('yield [[Ask("picker_0", "?")]]'), "of Asks or of effects; got list",
        "yield [[Ask(",
    ),
    "a parser that is a value": (
        PICK, PICK.replace("read)", 'read("1"))'), "'str.. object is not callable",
        PICK.strip()[:25],
    ),
    "yield from an ask": (
        PICK, PICK.replace("yield ", "yield from "), "got str", 'yield from Ask("picker_0"',
    ),
    "a reply for its answer": (
        *before_end("yield Grade(pick)"), r"takes str \| None, got Reply",
        "yield Grade(pick)",
    ),
    "pay in a plain dict": (
        *end("Outcome(payoffs=dict.fromkeys(self.agents, 1.0))"), r"must be Payoffs\(", "def play",
    ),
    "a name without a version": (
        NAME, '    name = "mine"\n', "with a version, as debate_v0; got 'mine'", "",
    ),
    "a name of flowzoo": (
        NAME, '    name = "voting_v0"\n', "the name voting_v0 is of a workflow of flowzoo", "",
    ),
    "the end of an episode that is caught": (
        PICK, f"{TRY}        except BaseException:\n            pick = drafts[0]\n",
        "write `except Exception`", "try:",
    ),
    "every error that is caught": (
        PICK, f"{TRY}        except:\n            pick = drafts[0]\n",
        "an episode that is stopped raises GeneratorExit", "try:",
    ),
    "an item after the end": (
        PICK, f"{TRY}        finally:\n            yield InterimScore(0.5)\n",
        "no `yield` in `finally`", "try:",
    ),
    "a value kept in the workflow": (
        PICK, f"        self.turns = 1\n{PICK}", "all episodes share self.turns", "self.turns",
    ),
    "a setting without dataclass": (
        NAME, f"{NAME}    rounds: int = 2\n",
        r"Mine.rounds is no setting.*dataclass\(frozen=True\)", "",
    ),
    "settings that are not checked": (
        NAME, f"{NAME}\n    def __post_init__(self):\n        pass\n\n",
        r"must call super\(\).__post_init__\(\)", "",
    ),
    "tools of an unknown role": (
        NAME, f'{NAME}    tool_roles = ("pickr",)\n', "unknown role in `tool_roles` of mine_v0", "",
    ),
    "a tool in place of a tuple": (
        f"{NAME}@{PICK}",
        f'{NAME}    tool_roles = ("picker",)\n@{PICK.replace("read)", "read, tools=TOOL)")}',
        "tools of picker_0 must be a tuple of Tools", PICK.strip()[:25],
    ),
    "an unreadable verdict taken for a score": (
        f"{NAME}@{END}",
        f"{NAME}    asks_judge = True\n@        verdict = yield Judge(pick, 'Clear?')\n"
        f"        number = int(verdict.score > 0.5)\n{END}",
        "not supported between instances of .*NoneType", "number = int(verdict",
    ),
    "an unreadable reply read as False": (
        "else None", "else False", "the parser read of picker_0 reads an empty reply as False", "",
    ),
    "a value that equals nothing": (
        f"return text.strip() if@{SCORE}@int(pick.strict or 1)",
        "return object() if@        yield RoleScore(pick, 1.0)\n@1",
        "a value must depend on the reply alone", "",
    ),
    "a message of no role": (
        '"Which, 1 or 2?"', '[{"role": "judge", "content": "Which?"}]',
        "a role .assistant, system, tool, user. and a str as content", PICK.strip()[:25],
    ),
    "a score in place of the answer": (
        *end("Outcome(grades[number].score)"), r"takes str \| None, got float",
        "def play",
    ),
    "a reply in place of the answer": (
        *end("Outcome(drafts[number])"), r"takes str \| None, got Reply", "def play",
    ),
    "an expert that raises": (
        'return "1" if role', 'return problem.nothing if role',
        r"expert\(\) raised AttributeError.* for picker", "def expert",
    ),
    "a nested generator without yield from": (
        PICK,
        f"        def ask():\n    {PICK}            return pick\n        pick = ask()\n",
        "only what `yield from` returns has that", "yield RoleScore(pick",
    ),
    "a list that episodes share": (
        f'def play(self, problem):@{PHASE}@{END}',
        f'def play(self, problem, seen=[]):@        prompt += str(len(seen))\n{PHASE}@'
        f"        seen.append(pick.text)\n{END}",
        "a copy has|DivergedError", "",
    ),
    "a hash of a text in a prompt": (
        '"Which, 1 or 2?"', 'f"Which? {hash(problem.text)}"',
        r"a prompt of episode 0 differs in another process.*never hash\(\)", "",
    ),
    "a number of the process in a prompt": (
        '"Which, 1 or 2?"', 'f"Which? {os.getpid()}"', "differs in another process", "",
    ),
    "a forgotten question": (
        "prompt = self.task.prompt(problem)", 'prompt = "Solve it."',
        r"no prompt has the text of the problem: write self.task.prompt\(problem\)", "",
    ),
    "a grade as a condition": (
        *end("Outcome(drafts[0].strict, 1.0 if grades[0] else 0.0)"),
        "a GradeResult always holds as a condition: compare its score", "return Outcome(drafts",
    ),
    "a role of two words": (
        '"picker": 1', '"the picker": 1', "a role is a word of letters, digits and _", "",
    ),
    "a model's text as a number": (
        "int(pick.strict or 1)", "int(pick.text)", "raised ValueError", "number = int(",
    ),
    "asks until one can be read": (
        SCORE, f"        while pick.strict is None:\n    {PICK}{SCORE}",
        "has made 1,000 calls and did not end", 'pick = yield Ask("picker_0"',
    ),
    "asks in a dict": (
        *before_end('yield {"again": Ask("picker_0", "Again?")}'), "got dict", "yield {",
    ),
    "pay in arrays": (
        *end("Outcome(payoffs=Payoffs(dict.fromkeys(self.agents, np.ones(1))))"),
        "the pay of solver_0 must be a finite number, got array", "def play",
    ),
    "pay of truth values": (
        *end("Outcome(payoffs=Payoffs(dict.fromkeys(self.agents, True)))"),
        "the pay of solver_0 must be a finite number, got True", "def play",
    ),
    "a fact of NumPy": (
        *end('Outcome(score=1.0, facts={"x": np.int64(1)})'), "facts are plain values", "def play",
    ),
    "an expert that is async": (
        "def expert(", "async def expert(", "must return a text, got coroutine", "async def expert",
    ),
    "an expert without a parameter": (
        "problem, rng, right):", "problem, right):",
        r"expert\(\) raised TypeError\('Mine.expert\(\) takes 5", "def expert",
    ),
    "a range upside down": (
        NAME, f'{NAME}    score_range = (1.0, -1.0)\n',
        "score_range must be two finite numbers", "",
    ),
}  # fmt: skip


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`written(source)`: the class `Mine` of a module `mine.py`, and its source."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def load(source: str) -> Any:
        (tmp_path / "mine.py").write_text(source, encoding="utf-8")
        sys.modules.pop("mine", None)
        importlib.invalidate_caches()
        sys.dont_write_bytecode = True
        return importlib.import_module("mine").Mine

    yield load
    sys.modules.pop("mine", None)


def test_the_sound_script_passes(written):
    traits = check_workflow(make_workflow(written(SOUND)))
    assert traits.scored == {"solver": "every reply", "picker": "every reply"}
    assert (traits.pays, traits.credits) == (False, ("team", "local", "mix"))
    assert "scores (truth): solver every reply" in str(traits)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_where_it_is(name, written):
    olds, news, fault, place = MISTAKES[name]
    source = SOUND
    for old, new in zip(olds.split("@"), news.split("@"), strict=True):
        assert old in source
        source = source.replace(old, new, 1)
    cls = written(source)
    with pytest.raises((AssertionError, ValueError), match=fault) as caught:
        check_workflow(make_workflow(cls))
    if place:
        line = source[: source.rindex(place)].count("\n") + 1
        assert f"mine.py, line {line}" in str(caught.value)


def test_a_credit_that_lacks_scores_is_refused_with_the_roles(written):
    cls = written(SOUND.replace(SCORE, ""))
    workflow = make_workflow(cls, credit="local")
    with pytest.raises(AssertionError, match=r"lack some: picker \(no reply\); yield Grade"):
        check_workflow(workflow)
    assert credit_traits(make_workflow(cls)).credits == ("team",)
    assert check_workflow(make_workflow(cls)).scored["picker"] == "no reply"


def test_a_role_that_is_never_asked_is_named(written):
    cls = written(SOUND.replace('"picker": 1', '"picker": 1, "critic": 1'))
    traits = check_workflow(make_workflow(cls))
    assert traits.scored["critic"] == "never asked"
    assert traits.credits == ("team", "local", "mix")


def test_a_reply_in_a_prompt_is_its_text(written):
    quoted = SOUND.replace('"Which, 1 or 2?"', 'f"Which? {drafts[0]}, {drafts[1]}"')
    workflow = make_workflow(written(quoted))
    (episode,) = expert_episodes(workflow, 1, 1.0)
    texts = [turn.said for turn in episode.turns[:2]]
    assert episode.turns[2].messages[-1]["content"] == f"Which? {texts[0]}, {texts[1]}"


def test_errors_may_be_caught_and_the_end_passed_on(written):
    caught = f"{TRY}        except Exception:\n            pick = drafts[0]\n"
    passed = f"{TRY}        except BaseException:\n            number = 0\n            raise\n"
    for block in (caught, passed):
        check_workflow(make_workflow(written(SOUND.replace(PICK, block))))


def test_enough_mistakes_are_planted():
    assert len(MISTAKES) >= 30
    assert sum(bool(place) for *_, place in MISTAKES.values()) >= 30
