"""Which backend a sandbox takes: the one asked for, or under `auto` the best that works here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, get_args

from flowzoo.errors import FlowzooError, UsageError, unknown
from flowzoo.extras import remedy
from flowzoo.sandbox.backends import Backend
from flowzoo.sandbox.box.box import Box, start_box
from flowzoo.sandbox.box.engine import Opener
from flowzoo.sandbox.local import LocalBackend
from flowzoo.sandbox.tier import SandboxName

AUTO: tuple[SandboxName, ...] = ("docker", "namespaces", "landlock")
"""Best first; `unsafe` is never chosen."""
REMEDY = (
    f"Start a Docker engine that this user may use ({remedy('docker')}), or allow user "
    "namespaces or Landlock; `flowzoo doctor` shows what is missing. The backend `unsafe` "
    "runs programs with this user's rights: only for programs you would run yourself."
)

_log = logging.getLogger("flowzoo.sandbox")
_stated: set[str] = set()


def make_backend(
    name: SandboxName, options: Mapping[str, Any], packages: tuple[str, ...] = ()
) -> Backend:
    """The backend of one tier, whose boxes have these packages.

    Raises:
        FlowzooError: it cannot work here; the message says why.
    """
    if name == "docker":
        from flowzoo.sandbox.docker.boxes import DockerBackend

        return DockerBackend(**options, packages=packages)
    if name == "namespaces" or name == "landlock" or name == "unsafe":
        return LocalBackend(name, packages)
    raise unknown("sandbox backend", name, get_args(SandboxName))


def make_opener(
    name: SandboxName, options: Mapping[str, Any], packages: tuple[str, ...] = ()
) -> Opener:
    """What finds the backend for `name`: a tier works when a box of it has become ready."""

    async def open_backend(boxes: set[Box]) -> tuple[Backend, Box]:
        refusals = []
        for tier in AUTO if name == "auto" else (name,):
            backend = None
            try:
                backend = make_backend(tier, options, packages)
                box = await start_box(backend, boxes, once=True)
            except BaseException as error:
                if backend is not None:
                    backend.close()
                if isinstance(error, UsageError) or not isinstance(error, FlowzooError):
                    raise
                refusals.append(f"{tier}: {str(error).rstrip('.')}")
                continue
            _state(backend, refusals)
            return backend, box
        raise UsageError(_refused(name, refusals))

    return open_backend


def _refused(name: SandboxName, refusals: list[str]) -> str:
    """The message where nothing works."""
    if name != "auto":
        return (
            f"the sandbox backend {refusals[0]}. It was asked for by name, so no other is taken; "
            "`flowzoo doctor` shows what works here."
        )
    tried = "; ".join(refusals)
    return (
        f"no sandbox works on this machine, so untrusted code is not run. Tried {tried}. {REMEDY}"
    )


def _state(backend: Backend, refusals: list[str]) -> None:
    """Say once per process how far programs are confined, and why no further."""
    if backend.tier not in _stated:
        _stated.add(backend.tier)
        level = logging.WARNING if backend.tier == "unsafe" else logging.INFO
        why = f" (not taken: {'; '.join(refusals)})" if refusals else ""
        _log.log(level, "sandbox %s%s", backend.trust, why)
