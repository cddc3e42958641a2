"""Agents of one role with policies of their own are judged apart."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowzoo.baselines.report.by_policy import part_name, run_by_policy, split_roles
from flowzoo.baselines.report.changes import role_changes
from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.report.run_facts import run_facts
from flowzoo.baselines.run.reading import RunData

POLICIES = {"generator_0": "a", "generator_1": "b", "generator_2": "b", "aggregator": "c"}
GOOD, LOST = part_name("generator", "b"), part_name("generator", "a")

pytestmark = pytest.mark.xdist_group("report-facts")


@pytest.fixture
def run(make_run: Callable[..., Path], tmp_path: Path) -> RunData:
    """A steady run in which the generator of policy `a` becomes unreadable and wrong."""
    sharing = tuple(f"{name}={policy}" for name, policy in POLICIES.items())
    folder = make_run(tmp_path / "run", items=120, course=(0.6,) * 5, sharing=sharing)
    for path in (folder / "transcripts").glob("eval-*.jsonl"):
        episodes = [json.loads(line) for line in path.read_text().splitlines()]
        late = int(path.stem.split("-")[1]) >= 20
        for call in (call for episode in episodes for call in episode["calls"]):
            call["policy"] = POLICIES.get(call["agent"], "c")
            if call["policy"] == "a" and late:
                call |= {"reply": "no", "strict": False, "role_score": 0.0}
        path.write_text("".join(json.dumps(episode) + "\n" for episode in episodes))
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"policies": POLICIES}))
    return read_runs([folder])[0]


def test_a_role_with_several_policies_has_a_row_for_each(run):
    assert split_roles(run) == {"generator"}
    assert run_by_policy(run).roles == ["aggregator", LOST, GOOD]
    rows = {(row["role"], row["measure"]): row for row in role_changes(run)["rows"]}
    assert {role for role, _ in rows} == {"", "aggregator", LOST, GOOD}
    assert rows[LOST, "strict"]["end"] == 0.0
    assert rows[GOOD, "strict"]["end"] == 1.0
    assert rows[GOOD, "role_score"]["end"] == pytest.approx(0.6, abs=0.1)


def test_the_finding_is_of_one_policy(run):
    facts = run_facts(run)
    codes = {(role, code) for role, code in facts["codes"]}
    assert {(LOST, "lost form"), (LOST, "lost skill")} <= codes
    assert not any(role in ("generator", GOOD) for role, _ in codes)
    diagnosis: dict[str, Any] = facts["diagnosis"]
    assert diagnosis["role"] == LOST
    assert f"It shows in {LOST}" in diagnosis["sentences"][1]


def test_roles_of_one_policy_stay_whole(make_run, tmp_path):
    (whole,) = read_runs([make_run(tmp_path / "whole", items=30, sharing=("isolated",))])
    assert split_roles(whole) == frozenset()
    assert run_by_policy(whole) is whole
