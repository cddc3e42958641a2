"""`flowzoo serve`: a workflow with its policies as a model of an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from functools import partial

from flowzoo.commands.policies import PolicyOptions, check_policy_map, open_policy_map
from flowzoo.commands.problems import ProblemOptions, build_workflow, grading_of
from flowzoo.commands.progress.stopping import interruptible
from flowzoo.commands.shared import check_count
from flowzoo.envs.episode.watchdog import watch
from flowzoo.envs.settings import check_number
from flowzoo.errors import UsageError

REFUSED = ("data", "split", "skip_unusable")
"""Options of problems, which requests bring."""


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo serve`."""

    workflow: str | None = field(default=None, metadata={"positional": "[WORKFLOW]"})
    """Name of the workflow, e.g. `voting` or `voting_v0`, module:Class or file.py:Class."""
    problems: ProblemOptions = field(default_factory=ProblemOptions, metadata={"refused": REFUSED})
    policies: PolicyOptions = field(default_factory=PolicyOptions)
    host: str = "127.0.0.1"
    """Address to listen on; one that is reachable from other machines needs --api-key."""
    port: int = 8000
    """Port to listen on; 0: any free port."""
    api_key: str = ""
    """Required API key of requests."""
    request_bytes: int = 2**20
    """Most bytes of a request."""
    max_open: int = 256
    """Most concurrent answers, of which a request has `n`; further ones get an error and can be
    retried."""
    seconds: float = 600.0
    """Time limit of a request."""
    grace: float = 5.0
    """Seconds to finish open requests after Ctrl-C."""


def run(options: Options) -> int:
    """Serve until Ctrl-C."""
    from flowzoo.agents.serving.questions import check_served
    from flowzoo.agents.serving.server import TeamServer, bind
    from flowzoo.agents.serving.service import ServingLimits, TeamService

    check_options(options)
    workflow = build_workflow(options.workflow, options.problems, options.policies.specs)
    check_served(workflow)
    check_policy_map(workflow, options.policies)
    grading_of(workflow)
    opened = bind(options.host, options.port, options.api_key)
    limits = ServingLimits(options.request_bytes, options.max_open, options.seconds)
    policies, seed = options.policies, options.problems.seed
    with opened, open_policy_map(workflow, policies, seed) as policy_map:
        service = TeamService(
            workflow,
            policy_map,
            temperature=policies.temperature,
            top_p=policies.top_p,
            limits=limits,
            api_key=options.api_key,
        )
        host, port = opened.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
        line = f"serving {', '.join(service.team.models)} at {url} (Ctrl-C ends it)"
        server = TeamServer(service, opened, options.grace, partial(print, line, flush=True))
        tell = partial(print, file=sys.stderr, flush=True)
        with interruptible(lambda: f"requests answered: {service.answered:,}"), watch(tell):
            asyncio.run(server.run_until_stopped())
    return 0


def check_options(options: Options) -> None:
    """Reject invalid options before anything is loaded."""
    from flowzoo.envs.door.app import MOST_INCOMING

    check_count("port", options.port, 0, 65_535)
    check_count("request-bytes", options.request_bytes, 1, MOST_INCOMING)
    check_count("max-open", options.max_open)
    check_number("--seconds", options.seconds, 0.001)
    check_number("--grace", options.grace, 0, 3600)
    key = options.api_key
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        raise UsageError("--api-key must have only printable ASCII characters without spaces")
    problems = options.problems
    for name in REFUSED:
        if getattr(problems, name):
            label = name.replace("_", "-")
            raise UsageError(
                f"--{label} is for problems, but requests contain the problems: leave it out"
            )
    for spec in options.policies.specs:
        if spec.partition(":")[0] == "scripted":
            raise UsageError(
                f"--policy {spec}: scripted policies only know the answers of the task's problems: "
                "name a model"
            )
