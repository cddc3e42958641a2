"""Options of workflows and tasks: a value of another type is refused in a line that names it."""

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from flowzoo.declared import fits
from flowzoo.envs import make_workflow
from flowzoo.envs.api.registry import WORKFLOWS
from flowzoo.envs.tasks import TASKS, make_task
from flowzoo.errors import UsageError

WRONG = (1.5, -1, "nonsense", "3", True, None, math.nan, math.inf, (1.5,), b"1", {}, object())
"""Values of types of which few options have more than one."""
OWN = {"task", "digest", "failing"}
"""Fields that no user gives."""
ALSO = [["eval_opt_v0", "tools", None]]
"""`none` on a command line, which is read as None."""


def misuses(made: object) -> list[tuple[str, object]]:
    """Each option of an object with each value of another type, or that is not finite."""
    hints = get_type_hints(type(made), include_extras=True)
    return [
        (option.name, value)
        for option in fields(made)  # type: ignore[arg-type]
        for value in WRONG
        if option.name not in OWN
        and not (
            fits(value, hints[option.name])
            and not (value in (math.nan, math.inf) and isinstance(option.default, float))
        )
    ]


@pytest.mark.parametrize(
    ("make", "name"),
    [*((make_workflow, name) for name in WORKFLOWS), *((make_task, name) for name in TASKS)],
)
def test_values_of_another_type_are_refused_by_name(make: Callable[..., Any], name: str):
    cases = misuses(make(name))
    for option, value in cases:
        if [name, option, value] in ALSO:
            continue
        with pytest.raises(UsageError, match=rf"\b{option}\b") as refused:
            make(name, **{option: value})
        assert "\n" not in str(refused.value)
    assert len(cases) >= 40, "a rule that generates nothing tests nothing"
