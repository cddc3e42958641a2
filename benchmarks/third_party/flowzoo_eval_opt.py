"""An evaluator and an optimizer as verifiers finds them: by the name of a module."""

from flowzoo.adapters.verifiers_env import CallHarness, plugin

EvalOptTasks, EvalOptEnv = plugin("eval_opt", problems=6)
__all__ = ["CallHarness", "EvalOptEnv", "EvalOptTasks"]
