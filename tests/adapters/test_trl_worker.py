"""The rollout worker beside a TRL that moved what it needs."""

import sys

import pytest

from flowzoo.adapters.trl_worker import TRLRolloutWorker
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.envs import make_workflow
from flowzoo.errors import UsageError


def test_another_layout_of_trl_is_said(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "trl"]:
        monkeypatch.delitem(sys.modules, name)
    package = tmp_path / "trl" / "experimental" / "async_grpo"
    package.mkdir(parents=True)
    (tmp_path / "trl" / "__init__.py").write_text('__version__ = "1.18.0"\n', "utf-8")
    (package / "__init__.py").write_text("", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    workflow = make_workflow("voting")
    with pytest.raises(UsageError, match=r"trl 1\.18\.0 has no .* pip install 'trl==1\.16\.0'"):
        TRLRolloutWorker(workflow, ScriptedPolicy(workflow, 1))
