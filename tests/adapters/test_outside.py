"""What other libraries cannot answer is refused when a workflow is loaded."""

from typing import ClassVar

import pytest

from flowzoo.adapters.outside import check_served, free_agents
from flowzoo.envs import Ask, Judge, Outcome, Workflow, make_workflow
from flowzoo.errors import UsageError


class Judged(Workflow):
    """A judge is asked."""

    name = "judged_v0"
    roles: ClassVar = {"writer": 1}
    asks_judge: ClassVar = True

    def play(self, problem):
        reply = yield Ask("writer_0", "Write.")
        yield Judge(reply, "Good?")
        return Outcome(score=1.0)


class Tooled(Judged):
    """A solver has tools."""

    name = "tooled_v0"
    roles: ClassVar = {"writer": 1, "solver": 1}
    tool_roles: ClassVar = ("solver",)
    asks_judge: ClassVar = False


def test_judges_and_tools_are_refused():
    with pytest.raises(UsageError, match="judged_v0 asks a judge, which this adapter does not"):
        check_served(make_workflow(Judged))
    with pytest.raises(UsageError, match="tooled_v0 offers tools to solver, which this adapter"):
        check_served(make_workflow(Tooled))
    check_served(make_workflow(Tooled), {"writer"})  # the others are played by flowzoo
    check_served(make_workflow("voting_v0"))


GENERATORS = ["generator_0", "generator_1", "generator_2"]


@pytest.mark.parametrize(
    ("others", "played", "free"),
    [
        ({}, (), [*GENERATORS, "aggregator_0"]),
        ({"aggregator": "scripted:1"}, (), GENERATORS),
        ({"generator_1": "scripted:1"}, (), ["generator_0", "generator_2", "aggregator_0"]),
        ("scripted:1", "aggregator", ["aggregator_0"]),
        (
            {"generator": "scripted:1"},
            ("generator_0", "aggregator"),
            ["generator_0", "aggregator_0"],
        ),
    ],
)
def test_agents_that_others_leave_free(others, played, free):
    assert free_agents(make_workflow("voting"), others, played) == free


def test_every_adapter_of_whole_episodes_asks_at_load():
    trl = pytest.importorskip("trl")
    from flowzoo.adapters.trl_spec import TRLSpec

    assert trl
    with pytest.raises(UsageError, match="asks a judge"):
        TRLSpec(Judged, "writer")
