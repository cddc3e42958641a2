"""Opens the backend of a sandbox: the named one, or under `auto` the best that works here."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from flowzoo.errors import FlowzooError, UsageError
from flowzoo.extras import remedy
from flowzoo.sandbox.backends import Backend
from flowzoo.sandbox.box.box import Box, start_box
from flowzoo.sandbox.box.engine import Opener
from flowzoo.sandbox.tier import AUTO, BACKENDS, SandboxName, backend_spec

# Backends that `auto` tries, best first.
PREFERENCE = tuple(spec.name for spec in BACKENDS.values() if spec.auto)
REMEDY = (
    f"Start a Docker engine that this user may use ({remedy('docker')}), or allow user "
    "namespaces or Landlock; `flowzoo doctor` shows what is missing. The backend `unsafe` "
    "runs programs with this user's rights: only for programs you would run yourself."
)

_log = logging.getLogger("flowzoo.sandbox")
_logged: set[str] = set()


def make_backend(
    name: SandboxName, options: Mapping[str, Any], packages: tuple[str, ...] = ()
) -> Backend:
    """Make the backend of this name, whose boxes have these packages."""
    spec = backend_spec(name)
    module, _, attribute = spec.target.partition(":")
    backend_class = getattr(import_module(module), attribute)
    return backend_class(**spec.arguments, **options, packages=packages)


def make_opener(
    name: SandboxName, options: Mapping[str, Any], packages: tuple[str, ...] = ()
) -> Opener:
    """Make the function that opens the backend; it works once a box of it has become ready."""

    async def open_backend(boxes: set[Box]) -> tuple[Backend, Box]:
        refusals = []
        for tier in PREFERENCE if name == AUTO else [name]:
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
            _log_trust(backend, refusals)
            return backend, box
        raise UsageError(_describe_refusals(name, refusals))

    return open_backend


def _describe_refusals(name: SandboxName, refusals: list[str]) -> str:
    if name != AUTO:
        return (
            f"the sandbox backend {refusals[0]}. It was asked for by name, so no other is taken; "
            "`flowzoo doctor` shows what works here."
        )
    tried = "; ".join(refusals)
    return (
        f"no sandbox works on this machine, so untrusted code is not run. Tried {tried}. {REMEDY}"
    )


def _log_trust(backend: Backend, refusals: list[str]) -> None:
    if backend.tier not in _logged:
        _logged.add(backend.tier)
        spec = backend_spec(backend.tier)
        level = logging.INFO if spec.confines else logging.WARNING
        reason = f" (not taken: {'; '.join(refusals)})" if refusals else ""
        _log.log(level, "sandbox %s%s", backend.trust, reason)
