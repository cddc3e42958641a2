"""`flowzoo sandbox build` and `flowzoo sandbox check`: build the image, test the sandbox."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flowzoo.errors import UsageError
from flowzoo.sandbox.attacks.suite import ProbeResult, run_suite
from flowzoo.sandbox.docker.container import BoxUser
from flowzoo.sandbox.docker.engine import connect
from flowzoo.sandbox.docker.image import build_image
from flowzoo.sandbox.program import check_packages
from flowzoo.sandbox.sandbox import Sandbox
from flowzoo.sandbox.tier import SandboxName, backend_spec


@dataclass(frozen=True, slots=True)
class Build:
    """Build the image of the Docker sandbox, by default from the running interpreter, offline."""

    base: str | None = None
    """Base image with Python from a registry, e.g. python:3.12-slim (3.11 or newer)."""
    tag: str | None = None
    """Additional name of the image, e.g. to push it to a registry."""
    packages: tuple[str, ...] = field(default=(), metadata={"option": "with"})
    """Packages that programs may import in addition to the standard library: numpy."""


@dataclass(frozen=True, slots=True)
class Check:
    """Run a self-check against this machine's sandbox and print the results."""

    backend: SandboxName = "auto"
    """Isolation to check; auto: the best one on this machine."""
    image: str | None = None
    """Docker only: an image made by `flowzoo sandbox build`, by name."""
    runtime: str | None = None
    """Docker only: another runtime of the engine, e.g. runsc (gVisor)."""
    user: BoxUser = "root"
    """Docker only: with nonroot, no process in the container runs as root."""
    json: bool = False
    """Print one JSON object per finding instead of a table."""


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo sandbox`."""

    action: Build | Check


def run(options: Options) -> int:
    """Build or check; the exit status is 1 if a check found a broken promise."""
    action = options.action
    return build(action) if isinstance(action, Build) else check(action)


def build(options: Build) -> int:
    """Build the image and print its name, size and time."""
    packages = check_packages(options.packages)
    client, _ = connect()
    try:
        image = build_image(client, options.base, options.tag, packages)
    finally:
        client.close()
    print(f"{image.tag}: {image.size / 1e6:.0f} MB, built in {image.seconds:.1f} s")
    return 0


def check(options: Check) -> int:
    """Run the suite and print the findings."""
    with Sandbox(options.backend, workers=1, options=_docker_options(options)) as sandbox:
        findings = run_suite(sandbox)
        results: list[ProbeResult] = []
        if options.json:
            for finding in findings:
                print(json.dumps(finding._asdict()), flush=True)
                results.append(finding)
        else:
            results = _print_table(findings, sandbox)
    return int(any(finding.promised and not finding.ok for finding in results))


def _docker_options(options: Check) -> dict[str, Any] | None:
    user = None if options.user == "root" else options.user
    given = {"image": options.image, "runtime": options.runtime, "user": user}
    chosen = {name: value for name, value in given.items() if value is not None}
    if chosen and options.backend != "docker":
        names = ", ".join(f"--{name}" for name in chosen)
        raise UsageError(f"{names}: only with --backend docker, got --backend {options.backend}.")
    return chosen or None


def _print_table(findings: Iterable[ProbeResult], sandbox: Sandbox) -> list[ProbeResult]:
    console = Console()
    console.print(Text(f"sandbox {sandbox.trust}", "bold"))
    results = list(_with_progress(findings))
    table = Table("category", "program", "expected", "got", "held", "note")
    for finding in results:
        word, color = _verdict(finding)
        cells = (finding.category, finding.name, finding.expected, finding.got)
        table.add_row(*map(Text, cells), Text(word, color), Text(finding.note))
    console.print(table)
    counts = Counter(_verdict(finding)[0] for finding in results)
    console.print(", ".join(f"{count} {word}" for word, count in counts.items()))
    if limits := backend_spec(sandbox.tier).limitations:
        console.print(f"What the tier {sandbox.tier} cannot promise:")
    for limit in limits:
        console.print(Text(f"  - {limit.text}"))
    return results


def _verdict(finding: ProbeResult) -> tuple[str, str]:
    if finding.ok:
        return "held", "green"
    return ("BROKEN", "bold red") if finding.promised else ("not promised", "yellow")


def _with_progress(findings: Iterable[ProbeResult]) -> Iterator[ProbeResult]:
    console = Console(stderr=True)
    with console.status("starting the sandbox") as status:
        for number, finding in enumerate(findings, start=1):
            status.update(f"{number} run, last: {finding.name}")
            yield finding
