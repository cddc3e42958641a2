"""Settings that a user of Python gets wrong are refused in one right line."""

import ast
from dataclasses import replace
from typing import Any

import pytest

from flowzoo.agents.policy import Sampling
from flowzoo.agents.rollout.settings import JointSettings, TreeSettings
from flowzoo.agents.vllm.settings import EngineSettings
from flowzoo.baselines.advantages.spec import AdvantageSpec
from flowzoo.baselines.learner.config import LearnerConfig, LossConfig
from flowzoo.baselines.learner.lora import LoraSettings
from flowzoo.baselines.run.checkpoint import CheckpointRetention
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.sft import SftConfig
from flowzoo.baselines.training.build import start_run
from flowzoo.errors import UsageError
from flowzoo.sandbox.program import Limits
from tests.tables import read_tables

CLASSES = {
    cls.__name__: cls
    for cls in (
        TrainConfig, SftConfig, LearnerConfig, LossConfig, AdvantageSpec, CheckpointRetention,
        TreeSettings, JointSettings, Sampling, LoraSettings, EngineSettings, Limits,
    )
}  # fmt: skip
TABLES = read_tables(__file__, "misuses")


def value_of(node: ast.expr) -> Any:
    """Value of an argument: a literal, or `float(TEXT)`."""
    if isinstance(node, ast.Call):
        return float(ast.literal_eval(node.args[0]))
    return ast.literal_eval(node)


@pytest.mark.parametrize(("call", "line"), [*TABLES["misuses"], *TABLES["kept_apart"]])
def test_a_misuse_is_refused_in_a_line_that_names_the_setting(call, line, tmp_path):
    made: Any = ast.parse(call, mode="eval").body
    values = {keyword.arg: value_of(keyword.value) for keyword in made.keywords}

    def use() -> None:
        settings = CLASSES[made.func.id](**values)
        if isinstance(settings, TrainConfig):
            start_run(replace(settings, out=str(tmp_path)))

    with pytest.raises(UsageError, match=rf"\b{made.keywords[-1].arg}\b") as refused:
        use()
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)
