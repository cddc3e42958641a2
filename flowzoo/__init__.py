"""flowzoo: PettingZoo for LLM workflows.

    from flowzoo import voting_v0
    env = voting_v0.env(task="math")

Every workflow is a module here (`voting_v0`, ...), imported when first used. Importing flowzoo
also enters the workflows in the registries of PettingZoo and Gymnasium, as strings:
`pettingzoo.make("aec", "flowzoo/voting-v0", task="math")` and
`gymnasium.make("flowzoo/Voting-v0", role="generator")` work afterwards.
"""

from __future__ import annotations

# First, because these imports are half of the command's start.
from flowzoo.start import end_when_interrupted, is_command

if is_command():
    end_when_interrupted()

import importlib
import logging
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from flowzoo.envs import code_pair_v0 as code_pair_v0
    from flowzoo.envs import coder_tester_v0 as coder_tester_v0
    from flowzoo.envs import eval_opt_v0 as eval_opt_v0
    from flowzoo.envs import orch_workers_v0 as orch_workers_v0
    from flowzoo.envs import reasoner_python_v0 as reasoner_python_v0
    from flowzoo.envs import reasoner_tool_v0 as reasoner_tool_v0
    from flowzoo.envs import search_team_v0 as search_team_v0
    from flowzoo.envs import single_v0 as single_v0
    from flowzoo.envs import tool_planner_v0 as tool_planner_v0
    from flowzoo.envs import voting_v0 as voting_v0
    from flowzoo.envs import writing_pair_v0 as writing_pair_v0

__version__ = "0.1.0"

_WORKFLOWS = (
    "coder_tester_v0",
    "code_pair_v0",
    "reasoner_python_v0",
    "reasoner_tool_v0",
    "eval_opt_v0",
    "orch_workers_v0",
    "search_team_v0",
    "single_v0",
    "tool_planner_v0",
    "voting_v0",
    "writing_pair_v0",
)

__all__ = ["__version__", *_WORKFLOWS]

# A library prints no log lines unless the application adds a handler.
logging.getLogger("flowzoo").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    """Import a workflow module on first use."""
    if name in _WORKFLOWS:
        return importlib.import_module(f"flowzoo.envs.{name}")
    raise AttributeError(f"module 'flowzoo' has no attribute {name!r}")


class _WorkflowModules:
    """Import `flowzoo.voting_v0` as the module that the attribute `flowzoo.voting_v0` is.

    A finder and a loader; the base classes in `importlib.abc` would take a tenth of the import.
    """

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        is_workflow = package == "flowzoo" and name in _WORKFLOWS
        return ModuleSpec(fullname, cast(Any, self)) if is_workflow else None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__.rpartition(".")[2]
        sys.modules[module.__name__] = importlib.import_module(f"flowzoo.envs.{name}")


sys.meta_path.append(cast(Any, _WorkflowModules()))


def __dir__() -> list[str]:
    """Names of the package, those not imported yet included."""
    return sorted({*globals(), *_WORKFLOWS})


if not is_command():  # the command does it itself, unless it only prints help
    from flowzoo.envs.api.registry import register_all

    register_all()  # strings only, no workflow is imported
