"""Workflows as environments: items of scripts, tasks, environments and records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowzoo.lazy import lazy_names

if TYPE_CHECKING:
    from flowzoo.envs.api.aec import Guard as Guard
    from flowzoo.envs.api.aec import WorkflowEnv as WorkflowEnv
    from flowzoo.envs.api.parallel import ParallelWorkflowEnv as ParallelWorkflowEnv
    from flowzoo.envs.api.registry import WORKFLOWS as WORKFLOWS
    from flowzoo.envs.api.registry import env_functions as env_functions
    from flowzoo.envs.api.registry import make_env as make_env
    from flowzoo.envs.api.registry import make_workflow as make_workflow
    from flowzoo.envs.api.spaces import Messages as Messages
    from flowzoo.envs.api.spaces import Prose as Prose
    from flowzoo.envs.episode.episode import Episode as Episode
    from flowzoo.envs.episode.examples import with_examples as with_examples
    from flowzoo.envs.episode.faults import UngradedError as UngradedError
    from flowzoo.envs.episode.faults import WorkflowError as WorkflowError
    from flowzoo.envs.episode.rubric import Rubric as Rubric
    from flowzoo.envs.external.program import OpenAIProgram as OpenAIProgram
    from flowzoo.envs.external.text_env import TextEnv as TextEnv
    from flowzoo.envs.external.text_env import random_move as random_move
    from flowzoo.envs.external.workflow import ResetTask as ResetTask
    from flowzoo.envs.records import Call as Call
    from flowzoo.envs.records import EpisodeRecord as EpisodeRecord
    from flowzoo.envs.records import SampledReply as SampledReply
    from flowzoo.envs.script import Ask as Ask
    from flowzoo.envs.script import EquivalenceClasses as EquivalenceClasses
    from flowzoo.envs.script import Grade as Grade
    from flowzoo.envs.script import GradeResult as GradeResult
    from flowzoo.envs.script import InterimScore as InterimScore
    from flowzoo.envs.script import Judge as Judge
    from flowzoo.envs.script import JudgeResult as JudgeResult
    from flowzoo.envs.script import Message as Message
    from flowzoo.envs.script import Outcome as Outcome
    from flowzoo.envs.script import Passage as Passage
    from flowzoo.envs.script import Payoffs as Payoffs
    from flowzoo.envs.script import Reply as Reply
    from flowzoo.envs.script import Responder as Responder
    from flowzoo.envs.script import RoleScore as RoleScore
    from flowzoo.envs.script import Run as Run
    from flowzoo.envs.script import RunResult as RunResult
    from flowzoo.envs.script import Script as Script
    from flowzoo.envs.script import Search as Search
    from flowzoo.envs.script import SearchResult as SearchResult
    from flowzoo.envs.script import ToolResult as ToolResult
    from flowzoo.envs.script import UseTool as UseTool
    from flowzoo.envs.tasks.task import Problem as Problem
    from flowzoo.envs.tasks.task import Task as Task
    from flowzoo.envs.tools import Tool as Tool
    from flowzoo.envs.tools import ToolCall as ToolCall
    from flowzoo.envs.workflow import Workflow as Workflow

__all__, __getattr__, __dir__ = lazy_names(__name__, {
    "api.aec": "Guard WorkflowEnv",
    "api.parallel": "ParallelWorkflowEnv",
    "api.registry": "WORKFLOWS env_functions make_env make_workflow",
    "api.spaces": "Messages Prose",
    "episode.episode": "Episode",
    "episode.examples": "with_examples",
    "episode.faults": "UngradedError WorkflowError",
    "episode.rubric": "Rubric",
    "external.program": "OpenAIProgram",
    "external.text_env": "TextEnv random_move",
    "external.workflow": "ResetTask",
    "records": "Call EpisodeRecord SampledReply",
    "script": (
        "Ask EquivalenceClasses Grade GradeResult InterimScore Judge JudgeResult Message "
        "Outcome Passage Payoffs Reply Responder RoleScore Run RunResult Script Search "
        "SearchResult ToolResult UseTool"
    ),
    "tasks.task": "Problem Task",
    "tools": "Tool ToolCall",
    "workflow": "Workflow",
})  # fmt: skip
