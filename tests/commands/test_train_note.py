"""The warning of `flowzoo train` where a pocket model meets problems it was not made for."""

import pytest

from flowzoo.commands.train import pocket_note
from flowzoo.envs import make_workflow


@pytest.mark.parametrize(
    ("workflow", "task", "options", "model", "message"),
    [
        ("search_team", "search", {}, "pocket", "--task search --options level=1 top_k=1;"),
        ("tool_planner", "plan_path", {"side": 4}, "pocket", "side=4 max_turns=2"),
        ("writing_pair", "writing", {}, "pocket:math", "--task math --options level=1"),
        ("voting", "math", {"level": 3}, "pocket", "was trained for --task math --options level=1"),
        (
            "voting",
            "math",
            {"level": 3},
            "pocket:s",
            "was trained for --task math --options level=1",
        ),
        ("voting", "math", {}, "pocket:code-xs", "the pocket model of code was trained for"),
        ("reasoner_tool", "math", {}, "pocket:math_teams", "--task math --options level=1 max_tu"),
        # Its own problems, and other models.
        ("reasoner_tool", "math", {"max_turns": 2}, "pocket:math_teams", ""),
        ("writing_pair", "writing", {"form": "expansion"}, "pocket", ""),
        ("search_team", "search", {"level": 1, "top_k": 1}, "pocket", ""),
        ("tool_planner", "plan_path", {"side": 4, "max_turns": 2}, "pocket", ""),
        ("voting", "math", {}, "pocket", ""),
        ("voting", "math", {}, "pocket:s", ""),
        ("voting", "math", {"level": 3}, "some/model", ""),
    ],
)
def test_other_problems_are_told(workflow, task, options, model, message):
    note = pocket_note(make_workflow(workflow, task, **options), model)
    assert message in note
    assert bool(note) == bool(message)
