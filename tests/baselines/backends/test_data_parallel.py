"""Ranks that train together do what one process does: gradients, weights and every metric."""

import json
import random
import re
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from flowzoo.envs.records import Call
from tests.baselines.rows import new_call

WORLD = Path(__file__).parent / "world.py"
CLOSE = 1e-5
"""Most that a gradient, a weight or a metric may be away from that of one process."""

FSDP, DDP = "FullyShardedDataParallel", "DataParallel"
Case = dict[str, Any]
World = Callable[..., list[list[Any]]]


def rows_of(count: int = 36) -> list[Call]:
    """Rows of unequal lengths: six a problem, of three roles with two slots each."""
    rng, calls = random.Random(0), list[Call]()
    for number in range(count):
        role, slot = "abc"[number % 3], number // 3 % 2
        output = tuple(rng.randrange(23) for _ in range(rng.choice((1, 2, 5, 9))))
        calls.append(
            new_call(
                problem=f"p{number // 6}",
                episode=f"e{number:03d}",
                role=role,
                slot=slot,
                policy="shared",
                output_ids=output,
                prompt_ids=tuple(rng.randrange(1, 23) for _ in range(rng.randint(1, 7))),
            )
        )
    return calls


@pytest.fixture
def world(tmp_path: Path, fork_server: Any) -> World:
    """`world(cases, ranks)`: what every case came to on every rank; none of them may hang."""

    def run(cases: Sequence[Case], ranks: int = 2) -> list[list[Any]]:
        place = tmp_path / f"world-{len(list(tmp_path.iterdir()))}"
        place.mkdir()
        given = {"WORLD": ranks, "STORE": str(place / "store"), "OUT": str(place / "out"),
                 "CASES": list(cases), "ROWS": rows_of()}  # fmt: skip
        begun = [
            fork_server.Process(target=runpy.run_path, args=(str(WORLD), {**given, "RANK": rank}))
            for rank in range(ranks)
        ]
        try:
            for one in begun:
                one.start()
            for one in begun:
                one.join(650)
            assert [one.exitcode for one in begun] == [0] * ranks
        finally:
            for one in begun:
                one.kill()
        found: list[list[Any]] = json.loads((place / "out").read_text(encoding="utf-8"))
        return found

    return run


def check(case: Case, ranks: Sequence[dict[str, float]]) -> None:
    for found in ranks:
        assert found["size"] > 0.01, "there is no gradient to compare"
        assert found["sharded"] == (case["group"] == FSDP)
        far = {name: found[name] for name in ("gradient", "weights", "metrics", "gram")}
        print(case, far)  # noqa: T201  # the figures of docs/scale.md
        assert max(far.values()) <= CLOSE, (case, far)


def test_two_ranks_are_one_process(world):
    published = {"coherence": True, "form": "published"}
    cases = [
        {"kind": "full", "group": FSDP, "kl": True, "tied": True, **published},
        {"kind": "lora", "group": DDP, "layout": "padded", "rows": 9},
        {"kind": "full", "group": FSDP, "nan": True, "tokens": 8},
        {"kind": "backend"},
        {"kind": "traps"},
    ]
    *same, stopped, agreed, (fell, _) = world(cases)
    for case, ranks in zip(cases, same, strict=False):
        check(case, ranks)
    assert stopped == [["poisoned", stopped[0][1], True]] * 2
    assert len(stopped[0][1]) == 1
    assert "DTensor" in fell["root bypassed"], "what the learner's way around it is for"
    assert "make every learner on a model, then `join`" in fell["late learner"]
    assert (fell["saved"], fell["parts"]) == ("True", "True")
    shards, once = "[[0, 0], [1, 1], [2, 0]]", "0"
    assert agreed[0][:3] == [shards, once, "UsageError: no such thing (True)"]
    place = r"\(world\.py, line \d+\)"
    told = rf"RankError: rank 1 stopped: ZeroDivisionError: by zero {place} \(True\)"
    assert re.fullmatch(told, agreed[0][3])
    assert agreed[1] == [
        shards, once, "UsageError: no such thing (False)", "ZeroDivisionError: by zero (False)"
    ]  # fmt: skip


@pytest.mark.full
def test_every_kind_of_policy_layout_and_term(world):
    again: Case = {"kl": False, "steps": 2, "again": True}
    cases: list[Case] = [
        {"kind": kind, "group": group, "layout": layout, "kl": True, "coherence": True, **further}
        for kind, group, layout, further in (
            ("full", FSDP, "packed", {}),
            ("full", FSDP, "padded", {"tied": True, **again}),
            ("full", DDP, "padded", {"tied": True, "steps": 2, "tokens": 12}),
            ("lora", FSDP, "padded", again),
            ("lora", DDP, "packed", {}),
            ("adapters", FSDP, "packed", {}),
            ("adapters", DDP, "padded", again),
        )
    ]
    cases += [
        {"kind": "full", "group": FSDP, "rows": 3, "tokens": 400, "kl": True},  # one part
        {"kind": "full", "group": FSDP, "rows": 5, "roles": False, "optimizer": "sgd", "clip": 0.0},
        {"kind": "full", "group": FSDP, "gram": True, "rows": 24, "tokens": 400},
        {"kind": "full", "group": FSDP, "rows": 6, "broken": "root factor"},
        {"kind": "full", "group": FSDP, "rows": 6, "broken": "local dots"},
        {"kind": "lora", "group": DDP, "nan": True, "tokens": 8},
    ]
    *same, halved, blind, stopped = world(cases)
    for case, ranks in zip(cases, same, strict=False):
        check(case, ranks)
    assert halved[0]["gradient"] > 100 * CLOSE
    assert blind[0]["gradient"] <= CLOSE
    assert blind[0]["metrics"] > 100 * CLOSE
    assert stopped[0][2] is stopped[1][2] is True
    assert stopped[0] == stopped[1]


@pytest.mark.full
def test_a_learner_goes_on_with_any_number_of_ranks(world, tmp_path):
    alone = runpy.run_path(str(WORLD), run_name="world")
    one, two = tmp_path / "one", tmp_path / "two"
    base: Case = {"group": FSDP, "coherence": True}
    cases = {"full": base | {"kind": "full"}, "lora": base | {"kind": "lora", "kl": True}}
    wanted: dict[str, dict[str, float]] = {}
    for kind, case in cases.items():
        (learner,) = alone["learners_of"](case)
        alone["go_on"](learner, rows_of(), 2)
        (one / kind).mkdir(parents=True)
        alone["save_learner"](learner, one / kind)
        wanted[kind] = alone["go_on"](learner, rows_of(), 1)
    places = [(kind, {"load": str(one / kind), "save": str(two / kind)}) for kind in cases]
    places += [(kind, {"save": str(two / f"{kind}-anew")}) for kind in cases]
    found = [
        (kind, ranks[0])
        for (kind, _), ranks in zip(
            places, world([cases[kind] | place for kind, place in places]), strict=True
        )
    ]
    three = [(kind, {"load": str(two / kind)}) for kind in cases]
    found += [
        (kind, ranks[2])
        for (kind, _), ranks in zip(
            three, world([cases[kind] | place for kind, place in three], 3), strict=True
        )
    ]
    for kind, case in cases.items():
        for name in (kind, f"{kind}-anew"):
            assert any((two / name / "optimizer").iterdir())
            (again,) = alone["learners_of"](case)
            alone["load_learner"](again, two / name)
            found.append((kind, alone["go_on"](again, rows_of(), 1)))
    assert len(found) == 10
    for kind, metrics in found:
        assert metrics.keys() == wanted[kind].keys()
        far = {name: abs(metrics[name] - value) for name, value in wanted[kind].items()}
        assert max(far.values()) <= CLOSE, far
