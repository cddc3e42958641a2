"""The command `flowzoo`: reads the command line and hands it to the module of the command.

Exit status: 0 when the command did its work, 2 for a mistake of the user (one line on stderr),
130 after Ctrl-C (which says what is kept), 1 when the reader of a pipe went away.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import importlib
import io
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import tyro
from tyro import conf

from flowzoo.commands import algorithms as algorithms_command
from flowzoo.commands import doctor as doctor_command
from flowzoo.commands import eval as eval_command
from flowzoo.commands import export as export_command
from flowzoo.commands import filter as filter_command
from flowzoo.commands import list as list_command
from flowzoo.commands import matrix as matrix_command
from flowzoo.commands import new as new_command
from flowzoo.commands import play as play_command
from flowzoo.commands import report as report_command
from flowzoo.commands import sandbox as sandbox_command
from flowzoo.commands import sft as sft_command
from flowzoo.commands import swap as swap_command
from flowzoo.commands import train as train_command
from flowzoo.commands.mistakes import check_words, one_line
from flowzoo.errors import FlowzooError, UsageError
from flowzoo.provenance import usable_cores

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk or quota: the user's to mend, so they get one line as well."""
_PLACE = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR,
    errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO,
)  # fmt: skip
"""Errors of a place that a path names, which are the user's to mend as well."""
COMMANDS = {
    name: f"flowzoo.commands.{name}"
    for name in (
        "list", "algorithms", "play", "eval", "filter", "sft", "train", "matrix", "report", "swap",
        "export", "new", "doctor", "sandbox",
    )
}  # fmt: skip
"""Command -> its module."""

Command = (
    Annotated[list_command.Options, conf.subcommand("list")]
    | Annotated[algorithms_command.Options, conf.subcommand("algorithms")]
    | Annotated[play_command.Options, conf.subcommand("play")]
    | Annotated[eval_command.Options, conf.subcommand("eval")]
    | Annotated[filter_command.Options, conf.subcommand("filter")]
    | Annotated[sft_command.Options, conf.subcommand("sft")]
    | Annotated[train_command.Options, conf.subcommand("train")]
    | Annotated[matrix_command.Options, conf.subcommand("matrix")]
    | Annotated[report_command.Options, conf.subcommand("report")]
    | Annotated[swap_command.Options, conf.subcommand("swap")]
    | Annotated[export_command.Options, conf.subcommand("export")]
    | Annotated[new_command.Options, conf.subcommand("new")]
    | Annotated[doctor_command.Options, conf.subcommand("doctor")]
    | Annotated[sandbox_command.Options, conf.subcommand("sandbox")]
)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """PettingZoo for LLM workflows: play, evaluate and train multi-role workflows."""

    command: conf.OmitSubcommandPrefixes[conf.OmitArgPrefixes[Command]]
    verbose: bool = False
    """Log what happens to stderr, and show the traceback of an error."""
    version: bool = False
    """Print the version and exit."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (`sys.argv` by default) and return its exit status.

    Raises:
        SystemExit: help was asked for (status 0).
    """
    words = tuple(sys.argv[1:] if argv is None else argv)
    set_environment()
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # so that module:Class finds a workflow in this folder
    show_everything()
    try:
        status = _run(words)
        sys.stdout.flush()  # a broken pipe shows here, where it can still be caught
        return status
    except KeyboardInterrupt as stop:
        kept = "; ".join(getattr(stop, "__notes__", ())) or "nothing was saved"
        print(f"\ninterrupted: {kept}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Python flushes stdout once more at exit; give it somewhere to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


_PLAIN = str.maketrans({"×": "x", "−": "-", "–": "-", "…": "...", "█": "#", "·": "-", "→": "->"})


def show_everything() -> None:
    """Let terminals that know few characters show the others as escapes, instead of failing."""
    codecs.register_error("flowzoo.escape", _escape)
    for stream in (sys.stdout, sys.stderr):
        encoding = (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "")
        if encoding != "utf8" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="flowzoo.escape")


def _escape(error: UnicodeError) -> tuple[str, int]:
    """What an encoding does not have: of our own marks a plain form, else an escape."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end].translate(_PLAIN)
    return text.encode("ascii", "backslashreplace").decode("ascii"), error.end


def set_environment() -> None:
    """Defaults for variables that libraries read when they are imported; set ones are kept.

    Threads: as many as this process may use, which in a container is fewer than the machine has.
    """
    threads = os.environ.setdefault("OMP_NUM_THREADS", str(usable_cores()))
    os.environ.setdefault("MKL_NUM_THREADS", threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def _run(words: tuple[str, ...]) -> int:
    """Parse and dispatch; a mistake of the user becomes one red line and status 2."""
    if "--version" in words:
        from flowzoo import __version__

        print(f"flowzoo {__version__}")
        return 0
    try:
        line = _parse(words)
        _log_to_stderr(logging.INFO if line.verbose else logging.WARNING)
        return _module_of(line.command).run(line.command)
    except (FlowzooError, OSError) as error:
        if not isinstance(error, FlowzooError) and not _of_place(error):
            raise
        if "--verbose" in words:
            logging.getLogger("flowzoo").exception("the command failed")
        _print_error(error)
        return 2


def _of_place(error: OSError) -> bool:
    """Whether an error of the system is about a place that the user named, or is full."""
    return error.errno in _FULL or (error.errno in _PLACE and error.filename is not None)


def _parse(words: tuple[str, ...]) -> CommandLine:
    """The command line, over the file of settings that it may name.

    Raises:
        UsageError: it cannot be read.
        SystemExit: help was asked for (status 0).
    """
    check_words(words, COMMANDS)
    filed = train_command.with_file(words) if words[:1] == ("train",) else None
    read: partial[CommandLine] = partial(
        tyro.cli,
        CommandLine,
        prog="flowzoo",
        args=words or ("--help",),
        config=(conf.CascadeSubcommandArgs, conf.FlagCreatePairsOff),
    )
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return read() if filed is None else read(default=CommandLine(filed))
    except SystemExit as end:
        if end.code:
            raise UsageError(one_line(said.getvalue())) from None
        raise


def _module_of(options: object) -> Any:
    """The command module that defines the class of `options`."""
    return importlib.import_module(type(options).__module__)


def _log_to_stderr(level: int) -> None:
    """Show the package's log lines of `level` and above."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("flowzoo")
    logger.handlers = [handler]
    logger.setLevel(level)


def _print_error(error: FlowzooError | OSError) -> None:
    """One line `error: ...` on stderr, red on a terminal."""
    from rich.console import Console
    from rich.text import Text

    said = "; ".join([str(error), *getattr(error, "__notes__", ())])
    said = " ".join(said.split())  # messages of other libraries have several lines
    if isinstance(error, OSError) and not isinstance(error, FlowzooError):
        full = error.errno in _FULL
        said = f"{said}. {'Free space there, or write' if full else 'Name another place, or look'} "
        said += "elsewhere." if full else "at its permissions."
    Console(stderr=True).print(Text(f"error: {said}", "bold red"), soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
