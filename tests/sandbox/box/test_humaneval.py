"""HumanEval: every canonical solution is accepted, no mutant and no trick ever is."""

import ast
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowzoo.sandbox.attacks.probes import read_probes
from flowzoo.sandbox.program import CheckTest, Limits, Program
from tests.sandbox.judging import plain_ends

DATA = Path(os.environ.get("FLOWZOO_HUMANEVAL", "../shared/data/humaneval/HumanEval.jsonl"))
PROBES = Path(__file__).parents[1] / "probes"
LIMITS = Limits(cpu_s=2.0, memory_mb=512)
PATIENT = Limits(cpu_s=60.0, wall_s=300.0, memory_mb=512)
PER_PROBLEM = 4
FIRST_TIER_ONLY = True
# `make test` takes every fifth of the problems, mutants and tricks, `make test-all` the rest, too:
# at least 500 mutants in all.
FEW = 5
AT_LEAST = {"few": 100, "rest": 400}

pytestmark = pytest.mark.skipif(not DATA.exists(), reason=f"no {DATA}")

OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.Mod: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
    ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def edits(node: ast.AST) -> list[Callable[[ast.AST], None]]:
    """Ways to change a node in place."""
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in OPERATORS:
        swap = OPERATORS[type(node.op)]
        return [lambda n: setattr(n, "op", swap())]
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
        swap = OPERATORS[type(node.ops[0])]
        return [lambda n: n.ops.__setitem__(0, swap())]
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return [lambda n, by=by: setattr(n, "value", n.value + by) for by in (1, -1)]
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        return [lambda n: setattr(n, "value", not n.value)]
    if isinstance(node, ast.Constant) and type(node.value) is str:
        return [lambda n: setattr(n, "value", n.value + "x")]
    if isinstance(node, ast.Return) and node.value is not None:
        values = (lambda n: ast.Constant(None), lambda n: ast.List([n.value], ast.Load()))
        return [lambda n, of=of: setattr(n, "value", of(n)) for of in values]
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        return [lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))]
    if isinstance(node, ast.For):
        return [lambda n: setattr(n, "body", [*n.body, ast.Break()])]
    return []


def body_of(tree: ast.Module, entry: str) -> list[ast.AST]:
    """All nodes of the entry's function but its docstring, in a fixed order."""
    function = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == entry][-1]
    return [node for part in function.body[1:] for node in ast.walk(part)]


def mutants(problem: dict[str, str], rng: random.Random, count: int) -> list[str]:
    """Up to `count` solutions, each made of the canonical one by one edit."""
    source = problem["prompt"] + problem["canonical_solution"]
    entry = problem["entry_point"]
    nodes = body_of(ast.parse(source), entry)
    places = [(index, n) for index, node in enumerate(nodes) for n in range(len(edits(node)))]
    rng.shuffle(places)
    sources: dict[str, None] = {}
    for index, number in places:
        if len(sources) == count:
            break
        changed = ast.parse(source)
        target = body_of(changed, entry)[index]
        edits(target)[number](target)
        sources[ast.unparse(ast.fix_missing_locations(changed))] = None
    return list(sources)


# Programs that want the reward without the work, made for tests that are code.
TRICKS = [
    probe.source
    for name in ("exit", "hacks")
    for probe in read_probes(PROBES / f"{name}.toml")
    if probe.entry == "f" and any(isinstance(test, CheckTest) for test in probe.tests)
]


parts = pytest.mark.parametrize("part", ["few", pytest.param("rest", marks=pytest.mark.full)])


def chosen(rows: list[Any], part: str, is_first: bool, every: int) -> list[Any]:
    """The rows of a part; backends but the first one meet only a sample of all rows."""
    rows = rows if is_first else rows[::every]
    return [row for index, row in enumerate(rows) if (index % FEW == 0) == (part == "few")]


@pytest.fixture(scope="module")
def problems() -> list[dict[str, str]]:
    rows = [json.loads(line) for line in DATA.read_text().splitlines()]
    assert len(rows) == 164
    return rows


def rejected(problems: list[dict[str, str]], part: str, is_first: bool) -> list[tuple[int, str]]:
    """Mutants that plain execution of the tests rejects, with the index of their problem."""
    rng = random.Random(0)
    drawn = []
    for idx, problem in enumerate(problems):
        drawn += [(idx, source) for source in mutants(problem, rng, PER_PROBLEM)]
    drawn = chosen(drawn, part, is_first, 8)
    whole = [
        (source, f"{problems[idx]['test']}\ncheck({problems[idx]['entry_point']})")
        for idx, source in drawn
    ]
    # Those that hang or crash say nothing about comparison and are left out.
    ends = plain_ends(whole, seconds=0.5)
    pairs = [pair for pair, end in zip(drawn, ends, strict=True) if end == "raised"]
    assert len(pairs) >= (AT_LEAST[part] if is_first else 1)
    return pairs


def check_test(problem: dict[str, str]) -> CheckTest:
    """The test of a problem; some tests call helpers that its prompt defines."""
    call = f"check({problem['entry_point']})"
    return CheckTest(problem["test"], call, setup=problem["prompt"])


def judge(sandbox, problems, solutions, limits=LIMITS):
    """Verdicts for (problem index, source) pairs."""
    programs = [Program(source, problems[idx]["entry_point"]) for idx, source in solutions]
    tests = [[check_test(problems[idx])] for idx, _ in solutions]
    return sandbox.run_sync(programs, tests, limits)


@parts
def test_every_canonical_solution_is_accepted(sandbox, problems, part, is_first):
    solutions = [(k, p["prompt"] + p["canonical_solution"]) for k, p in enumerate(problems)]
    solutions = chosen(solutions, part, is_first, FEW)
    verdicts = judge(sandbox, problems, solutions, PATIENT)
    failed = {k: v.cases for (k, _), v in zip(solutions, verdicts, strict=True) if v.status != "AC"}
    assert not failed


@pytest.mark.full
@pytest.mark.of_host
@parts
def test_no_mutant_is_accepted(sandbox, problems, part, is_first):
    solutions = rejected(problems, part, is_first)
    verdicts = judge(sandbox, problems, solutions)
    accepted = [pair for pair, v in zip(solutions, verdicts, strict=True) if v.status == "AC"]
    assert not accepted
    assert {v.status for v in verdicts} <= {"WA", "RE", "TLE"}
    wrong = sum(v.status == "WA" for v in verdicts)
    assert wrong > len(verdicts) / 2


@parts
def test_no_trick_is_accepted(sandbox, problems, part, is_first):
    pairs = []
    for idx, problem in enumerate(problems):
        trick = TRICKS[idx // FEW % len(TRICKS)]  # a fifth of the problems meets all of them
        source = f"{trick}\n{problem['entry_point']} = lambda *args, **kwargs: f(args[0])"
        pairs.append([(idx, problem["prompt"] + "    pass\n" + source), (idx, source)])
    assert len(TRICKS) < len(problems) // FEW
    solutions = [solution for pair in chosen(pairs, part, is_first, 9) for solution in pair]
    verdicts = judge(sandbox, problems, solutions)
    accepted = [pair for pair, v in zip(solutions, verdicts, strict=True) if v.status == "AC"]
    assert not accepted
