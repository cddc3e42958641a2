"""The sandbox image: named by a digest of its content and built if it is missing."""

import contextlib
import hashlib
import io
import json
import logging
import os
import platform
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowzoo.sandbox.docker import rootfs as docker_rootfs
from flowzoo.sandbox.docker.engine import DockerError, explain, explain_errors, is_missing_image
from flowzoo.sandbox.program import package_folders, package_versions

REPOSITORY = "flowzoo-sandbox"
RUNNER_LABEL = "flowzoo.sandbox.runner"
DOCKERFILE = Path(__file__).with_name("Dockerfile")

# Python's name of an architecture by the engine's name.
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}

_log = logging.getLogger(__name__)
_building = threading.Lock()


def _after_fork() -> None:
    global _building
    _building = threading.Lock()  # a thread of the parent may be building an image


os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True, slots=True)
class SandboxImage:
    """An image of the engine with this version's runner."""

    tag: str
    id: str
    size: int  # bytes
    seconds: float = 0.0  # seconds of the build; 0 if it existed


def runner_digest(runner: Mapping[str, bytes]) -> str:
    """Digest of the runner's modules, names included."""
    digest = hashlib.sha256()
    for name, content in runner.items():
        digest.update(f"{name} {len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def image_tag(
    runner: Mapping[str, bytes], base: str | None = None, packages: Sequence[str] = ()
) -> str:
    """Name and tag of the image from the running interpreter, or from `base`, with packages."""
    # A changed runner, recipe or Python means another image; a label has the runner's digest, so
    # images with other names can be verified.
    recipe = DOCKERFILE if base else Path(docker_rootfs.__file__)
    source = base or f"{sys.version} {platform.machine()} {platform.libc_ver()}"
    text = f"{runner_digest(runner)} {source}".encode() + recipe.read_bytes()
    version = "base" if base else f"py{platform.python_version()}"
    if packages:
        text += repr(sorted(package_versions(packages).items())).encode()
        version = "-".join((version, *packages))
    return f"{REPOSITORY}:{version}-{hashlib.sha256(text).hexdigest()[:12]}"


def find_image(client: Any, name: str) -> SandboxImage | None:
    """The image `name` of the engine, or None."""
    with explain_errors(f"looking for the image {name}"):
        try:
            facts = client.api.inspect_image(name)
        except Exception as error:
            if is_missing_image(error):
                return None
            raise
    labels: Mapping[str, str] = facts["Config"].get("Labels") or {}
    if labels.get(RUNNER_LABEL) != runner_digest(docker_rootfs.read_runner()):
        what = "no sandbox image" if RUNNER_LABEL not in labels else "made by another version"
        raise DockerError(
            f"the image {name!r} is {what} of flowzoo: build it again (flowzoo sandbox build "
            "--tag NAME), or leave out `image` to use one from the running interpreter."
        )
    return SandboxImage(name, facts["Id"], facts["Size"])


def ensure_image(
    client: object,
    info: Mapping[str, object],
    name: str | None = None,
    packages: Sequence[str] = (),
) -> SandboxImage:
    """Find the image `name`, or the default one, which is built if it is missing."""
    # `info` is `docker info`: an engine of another architecture cannot run this machine's
    # interpreter and gets a base image with the same Python version.
    if name is not None:
        existing = find_image(client, name)
        if existing is None:
            raise DockerError(
                f"the engine has no image {name!r}: pull it (docker pull {name}), build it "
                f"(flowzoo sandbox build --tag {name}), or leave out `image` to have one built."
            )
        return existing
    machine = str(info.get("Architecture", ""))
    is_own = sys.platform == "linux" and _MACHINES.get(machine, machine) == platform.machine()
    base = None if is_own else f"python:{docker_rootfs.VERSION}-slim"
    with _building:
        name = image_tag(docker_rootfs.read_runner(), base, packages)
        existing = find_image(client, name)
        if existing is not None:
            return existing
        _log.warning("building the sandbox image %s (once; a few seconds)", name)
        return build_image(client, base, packages=packages)


def build_image(
    client: Any, base: str | None = None, tag: str | None = None, packages: Sequence[str] = ()
) -> SandboxImage:
    """Build the image from the running interpreter or from `base`; `tag` is an additional name."""
    # It contains `packages` as installed here, or for a `base` as pip installs them.
    start = time.perf_counter()
    runner = docker_rootfs.read_runner()
    name = image_tag(runner, base, packages)
    with explain_errors(f"building the image {name}"):
        if base is None:
            _import_rootfs(client, name, runner, packages)
        else:
            _build_from(client, name, base, runner, packages)
        if tag is not None:
            from docker.utils import parse_repository_tag

            repository, label = parse_repository_tag(tag)
            client.api.tag(name, repository, label or "latest")
        _remove_superseded(client, name)
        facts = client.api.inspect_image(name)
    return SandboxImage(tag or name, facts["Id"], facts["Size"], time.perf_counter() - start)


def _remove_superseded(client: Any, name: str) -> None:
    # Remove images with the same Python and another runner, and leftovers of failed builds. Images
    # in use remain; a missing one is built again.
    from docker.errors import APIError

    kind = name.rpartition("-")[0]
    for image in client.api.images(name=REPOSITORY, filters={"label": RUNNER_LABEL}):
        for tag in image.get("RepoTags") or ():
            if tag != name and tag.rpartition("-")[0] == kind:
                with contextlib.suppress(APIError):
                    client.api.remove_image(tag)
    client.images.prune(filters={"dangling": True, "label": RUNNER_LABEL})


def _import_rootfs(
    client: Any, name: str, runner: Mapping[str, bytes], packages: Sequence[str]
) -> None:
    # The file system is the only layer of an image FROM scratch.
    changes = [
        f"ENTRYPOINT {json.dumps(docker_rootfs.ENTRYPOINT)}",
        'CMD ["docker"]',
        f"ENV LD_LIBRARY_PATH={docker_rootfs.LIBRARY_PATH} LANG=C.UTF-8",
        "WORKDIR /",
        f"LABEL {RUNNER_LABEL}={runner_digest(runner)}",
    ]
    repository, _, tag = name.partition(":")
    descriptor, path = tempfile.mkstemp(suffix=".tar", prefix="flowzoo-rootfs-")
    try:
        with os.fdopen(descriptor, "wb") as out:
            docker_rootfs.write_rootfs(out, runner, package_folders(packages))
        answer = client.api.import_image(path, repository=repository, tag=tag, changes=changes)
    finally:
        os.unlink(path)
    # The engine responds with 200 and reports errors in the stream.
    _refuse_errors(json.loads(line) for line in answer.splitlines() if line.strip())


def _build_from(
    client: Any, name: str, base: str, runner: Mapping[str, bytes], packages: Sequence[str]
) -> None:
    # The context contains only the Dockerfile and the runner.
    context, recipe = io.BytesIO(), DOCKERFILE.read_text(encoding="utf-8")
    arguments = {"BASE": base, "PACKAGES": _pin(packages)}
    if not packages:  # installing packages needs a shell, which a base may lack
        recipe = "".join(
            line for line in recipe.splitlines(keepends=True) if "PACKAGES" not in line
        )
        del arguments["PACKAGES"]
    with tarfile.open(fileobj=context, mode="w") as tar:
        docker_rootfs.add_bytes(tar, "Dockerfile", recipe.encode())
        for module, content in runner.items():
            docker_rootfs.add_bytes(tar, f"runner/{module}", content)
    context.seek(0)
    lines = client.api.build(
        fileobj=context,
        custom_context=True,
        tag=name,
        buildargs=arguments,
        labels={RUNNER_LABEL: runner_digest(runner)},
        rm=True,
        forcerm=True,
        decode=True,
    )
    try:
        _refuse_errors(lines)
    except DockerError as error:
        raise DockerError(
            f"{error} If the base image {base!r} cannot be pulled from here, leave out --base: the "
            "image is then built from the running interpreter, without a registry."
        ) from error


def _pin(packages: Sequence[str]) -> str:
    return " ".join(f"{name}=={at}" for name, at in package_versions(packages).items())


def _refuse_errors(lines: Iterable[Mapping[str, object]]) -> None:
    for line in lines:
        if "error" in line:
            raise DockerError(explain(RuntimeError(line["error"]), "building the image"))
