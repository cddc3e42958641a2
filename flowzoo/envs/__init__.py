"""Workflows as environments: items of scripts, tasks, environments and records."""

from __future__ import annotations

from flowzoo.envs.api.aec import Guard, WorkflowEnv
from flowzoo.envs.api.parallel import ParallelWorkflowEnv
from flowzoo.envs.api.registry import WORKFLOWS, env_functions, make_env, make_workflow
from flowzoo.envs.api.spaces import Messages, Prose
from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.episode.examples import with_examples
from flowzoo.envs.episode.faults import UngradedError, WorkflowError
from flowzoo.envs.episode.rubric import Rubric
from flowzoo.envs.external.program import OpenAIProgram
from flowzoo.envs.external.text_env import TextEnv, random_move
from flowzoo.envs.external.workflow import ResetTask
from flowzoo.envs.records import Call, EpisodeRecord, SampledReply
from flowzoo.envs.script import (
    Ask,
    EquivalenceClasses,
    Grade,
    GradeResult,
    InterimScore,
    Judge,
    JudgeResult,
    Message,
    Outcome,
    Passage,
    Payoffs,
    Reply,
    Responder,
    RoleScore,
    Run,
    RunResult,
    Script,
    Search,
    SearchResult,
    ToolResult,
    UseTool,
)
from flowzoo.envs.tasks.task import Problem, Task
from flowzoo.envs.tools import Tool, ToolCall
from flowzoo.envs.workflow import Workflow

__all__ = [
    "WORKFLOWS",
    "Ask",
    "Call",
    "Episode",
    "EpisodeRecord",
    "EquivalenceClasses",
    "Grade",
    "GradeResult",
    "Guard",
    "InterimScore",
    "Judge",
    "JudgeResult",
    "Message",
    "Messages",
    "OpenAIProgram",
    "Outcome",
    "ParallelWorkflowEnv",
    "Passage",
    "Payoffs",
    "Problem",
    "Prose",
    "Reply",
    "ResetTask",
    "Responder",
    "RoleScore",
    "Rubric",
    "Run",
    "RunResult",
    "SampledReply",
    "Script",
    "Search",
    "SearchResult",
    "Task",
    "TextEnv",
    "Tool",
    "ToolCall",
    "ToolResult",
    "UngradedError",
    "UseTool",
    "Workflow",
    "WorkflowEnv",
    "WorkflowError",
    "env_functions",
    "make_env",
    "make_workflow",
    "random_move",
    "with_examples",
]
