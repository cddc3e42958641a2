"""`flowzoo serve`: a workflow with its policies as a model of an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import os
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from flowzoo.commands.policies import PolicyOptions, check_policy_map, open_policy_map
from flowzoo.commands.problems import ProblemOptions, build_workflow, grading_of
from flowzoo.commands.progress.shown import to_stderr
from flowzoo.commands.progress.stopping import interruptible
from flowzoo.commands.shared import check_count
from flowzoo.envs.episode.watchdog import watch
from flowzoo.envs.settings import check_number
from flowzoo.errors import UsageError, need_module

KEY_VARIABLE = "FLOWZOO_API_KEY"
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
    """Address to listen on; one that is reachable from other machines needs a key."""
    port: int = 8000
    """Port to listen on; 0: any free port."""
    api_key: str = ""
    """File with the required API key of requests, as `@FILE`; default: FLOWZOO_API_KEY, if set."""
    request_bytes: int = 2**20
    """Most bytes of a request."""
    max_open: int = 256
    """Most concurrent answers, of which a request has `n`; further requests wait."""
    max_waiting: int = 1024
    """Most requests that wait; further ones get status 429 and the seconds after which to retry."""
    seconds: float = 600.0
    """Time limit of a request."""
    grace: float = 5.0
    """Seconds to finish open requests after Ctrl-C."""
    strict: bool = False
    """Refuse fields of requests that would have no effect."""
    mcp: bool = False
    """Be a tool of MCP clients on standard input and output instead of a server."""


def run(options: Options) -> int:
    """Serve until Ctrl-C."""
    from flowzoo.agents.serving.app import TeamServer
    from flowzoo.agents.serving.questions import check_served
    from flowzoo.agents.serving.service import ServingLimits, TeamService
    from flowzoo.front.server import bind

    check_options(options)
    key = read_key(options.api_key)
    workflow = build_workflow(options.workflow, options.problems, options.policies.specs)
    check_served(workflow)
    check_policy_map(workflow, options.policies)
    grading_of(workflow)
    opening = nullcontext() if options.mcp else bind(options.host, options.port, bool(key))
    limits = ServingLimits(
        options.request_bytes, options.max_open, options.seconds, options.max_waiting
    )
    policies, seed = options.policies, options.problems.seed
    sampling = policies.sampling(max_tokens=1)
    with opening as opened, open_policy_map(workflow, policies, seed) as policy_map:
        service = TeamService(
            workflow, policy_map, temperature=sampling.temperature, top_p=sampling.top_p,
            limits=limits, api_key=key, strict=options.strict,
        )  # fmt: skip
        if opened is None:
            need_module("mcp", "flowzoo serve --mcp")
            from flowzoo.agents.serving.mcp_tool import serve_tool

            asyncio.run(serve_tool(service))
            return 0
        server = TeamServer(service, opened, options.grace, lambda: print(line, flush=True))
        line = f"serving {', '.join(service.surface.models)} at {server.url}/v1 (Ctrl-C ends it)"
        with interruptible(lambda: f"requests answered: {service.answered:,}"), watch(to_stderr):
            asyncio.run(server.run_until_stopped())
    return 0


def check_options(options: Options) -> None:
    """Reject invalid options before anything is loaded."""
    from flowzoo.front.request import MOST_INCOMING

    check_count("port", options.port, 0, 65_535)
    check_count("request-bytes", options.request_bytes, 1, MOST_INCOMING)
    check_count("max-open", options.max_open)
    check_count("max-waiting", options.max_waiting, 0)
    check_number("--seconds", options.seconds, 0.001)
    check_number("--grace", options.grace, 0, 3600)
    for name in REFUSED:
        if getattr(options.problems, name):
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


def read_key(option: str) -> str:
    """The API key in the file of an option `@FILE`, else in the environment; may be empty."""
    if option and not option.startswith("@"):
        raise UsageError(
            "--api-key takes a file, as @FILE: every user of this machine can read a key on the "
            f"command line. Write it to a file, or set {KEY_VARIABLE}."
        )
    source, key = KEY_VARIABLE, os.environ.get(KEY_VARIABLE, "")
    if option:
        source = option[1:]
        try:
            with Path(source).open("rb") as file:
                key = file.read(2**12).decode("latin-1").strip()
        except OSError as error:
            raise UsageError(f"--api-key {option} cannot be read: {error.strerror}") from None
        if not key:
            raise UsageError(f"--api-key {option}: the file is empty, expected a key")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise UsageError(
            f"the API key in {source} must have only printable ASCII characters without spaces"
        )
    return key
