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
from flowzoo.envs.records import Call, EpisodeRecord, SampledReply
from flowzoo.envs.script import (
    Ask,
    EquivalenceClasses,
    Found,
    Grade,
    Graded,
    InterimScore,
    Judge,
    Judged,
    Message,
    Outcome,
    Passage,
    Payoffs,
    Ran,
    Reply,
    Responder,
    RoleScore,
    Run,
    Script,
    Search,
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
    "Found",
    "Grade",
    "Graded",
    "Guard",
    "InterimScore",
    "Judge",
    "Judged",
    "Message",
    "Messages",
    "OpenAIProgram",
    "Outcome",
    "ParallelWorkflowEnv",
    "Passage",
    "Payoffs",
    "Problem",
    "Prose",
    "Ran",
    "Reply",
    "Responder",
    "RoleScore",
    "Rubric",
    "Run",
    "SampledReply",
    "Script",
    "Search",
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
