"""The command `flowzoo`: parses the command line and runs the command.

Exit status: 0 on success, 2 for a mistake of the user (one line on stderr), 130 after Ctrl-C and
143 after SIGTERM (both print what is saved). When the reader of a pipe has closed it, as `| head`
does: 0 of a command that only prints, else 1, since its work is not done.
"""

import atexit
import codecs
import errno
import importlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import NoReturn, TextIO

from flowzoo.commands.progress.redaction import finish_files, redact_files
from flowzoo.commands.progress.stopping import STOP, kept_by
from flowzoo.errors import DataError, ExitError, FlowzooError, missing_module
from flowzoo.functions import call_contained
from flowzoo.provenance import error_line, redact, usable_cores
from flowzoo.start import is_command
from flowzoo.waits import LIMITS

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk or quota, which the user can fix: one line, no traceback."""
_PLACE = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR,
    errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO,
)  # fmt: skip
"""Errors of a path, which the user can fix, too."""

_PRINTING = {"list", "algorithms", "prompts", "play", "completion", "help", "--help", "-h"}
"""Words of command lines that do nothing but print."""

_READERS = {
    "dataset", "export", "leaderboard", "matrix", "prompts", "regrade", "report", "swap",
}  # fmt: skip
"""Commands whose work is what files hold, which others may have written."""
_OF_CONTENT = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""Errors of values of another kind or size than expected."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (`sys.argv` by default) and return its exit status."""
    arguments = tuple(sys.argv[1:] if argv is None else argv)
    if argv is None:
        sys.excepthook = print_traceback
    with STOP:
        try:
            fill_streams()
            set_environment()
            show_everything()
            if argv is None:
                redact_files()
            status = _run(arguments)
            sys.stdout.flush()  # a broken pipe shows here, where it can still be caught
            if LIMITS.abandoned and argv is None:
                end_without_threads(status)
            return status
        except BrokenPipeError:
            write_nowhere(sys.stdout)
            return 0 if _PRINTING.intersection(arguments) else 1
        except (KeyboardInterrupt, Exception) as error:
            if not STOP.has_ended(error):
                raise
            STOP.ignore()
            try:
                if isinstance(error, FlowzooError) and not is_reported(error):
                    _print_error(error)
                if not STOP.quiet:
                    print(f"\ninterrupted: {kept_by(error)}", file=sys.stderr)
                sys.stdout.flush()
            except BrokenPipeError:
                write_nowhere(sys.stdout, sys.stderr)
            return STOP.status
        finally:
            finish_files()


def write_nowhere(*streams: TextIO) -> None:
    """Give streams whose reader has gone somewhere to write what Python flushes at exit."""
    for stream in streams:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def end_without_threads(status: int) -> NoReturn:
    """End the process, which would wait for threads that do not answer."""
    atexit._run_exitfuncs()
    finish_files()
    sys.stderr.flush()
    os._exit(status)


def fill_streams() -> None:
    """Open standard streams that are closed (`>&-`) on the null device."""
    # Otherwise the next file that is opened would get the number of one of them.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # takes the lowest number, the stream's own
            os.set_inheritable(nowhere, True)
            setattr(sys, name, os.fdopen(nowhere, mode, encoding="utf-8"))


_PLAIN = str.maketrans({"×": "x", "−": "-", "–": "-", "…": "...", "█": "#", "·": "-", "→": "->"})


def show_everything() -> None:
    """Show characters that the terminal's encoding lacks as escapes instead of failing."""
    codecs.register_error("flowzoo.escape", _escape)
    for stream in (sys.stdout, sys.stderr):
        encoding = (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "")
        if encoding != "utf8" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="flowzoo.escape")


def _escape(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end].translate(_PLAIN)
    return text.encode("ascii", "backslashreplace").decode("ascii"), error.end


def set_environment() -> None:
    """Set defaults of variables that libraries read on import; variables that are set stay."""
    # Threads: as many as this process may use, which in a container is fewer than the machine has.
    threads = os.environ.setdefault("OMP_NUM_THREADS", str(usable_cores()))
    os.environ.setdefault("MKL_NUM_THREADS", threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def _run(arguments: tuple[str, ...]) -> int:
    if "--version" in arguments:
        from flowzoo import __version__

        print(f"flowzoo {__version__}")
        return 0
    try:
        # Late: importing commands takes up to a second, in which signals must be handled already.
        from flowzoo.commands.line import parse
        from flowzoo.permission import PERMISSION

        with PERMISSION.of(arguments):
            line = parse(arguments)
            handler, logger = logging.StreamHandler(sys.stderr), logging.getLogger("flowzoo")
            handler.setFormatter(RedactingFormatter("%(levelname)s %(name)s: %(message)s"))
            logger.handlers = [handler]
            logger.setLevel(logging.INFO if line.verbose else logging.WARNING)
            return _run_command(line.command)
    except (FlowzooError, OSError) as error:
        if STOP.has_ended(error) or not (isinstance(error, FlowzooError) or _of_place(error)):
            raise
        if "--verbose" in arguments:
            logging.getLogger("flowzoo").exception("the command failed")
        if not is_reported(error):
            _print_error(error)
        return 2


def _run_command(options: object) -> int:
    module = importlib.import_module(type(options).__module__)
    name = module.__name__.rpartition(".")[2]
    title = f"`flowzoo {name}`"
    if is_command():
        from flowzoo.envs.api.registry import register_all

        register_all()
    try:
        return call_contained(module.run, title, options)
    except ExitError as error:
        closed = getattr(error.__cause__, "__context__", None)
        if isinstance(closed, BrokenPipeError):  # of which Rich makes an exit
            raise closed from None
        raise
    except ModuleNotFoundError as error:
        missing = missing_module(error, title)
        if missing is None:
            raise
        raise missing from error
    except _OF_CONTENT as error:
        if isinstance(error, FlowzooError) or name not in _READERS:
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise DataError(
            f"{title} expects other values in the files that it was given ({error!r:.200} in "
            f"{os.path.basename(frame.filename)}, line {frame.lineno}): take them as flowzoo wrote "
            "them; --verbose shows more"
        ) from error


def is_reported(error: BaseException) -> bool:
    """True if another process says it, or the message of an interruption."""
    return getattr(error, "reported_elsewhere", False)


def _of_place(error: OSError) -> bool:
    return error.errno in _FULL or (error.errno in _PLACE and error.filename is not None)


def print_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an error that ends the process, without secrets."""
    sys.stderr.write(redact("".join(traceback.format_exception(kind, error, trace))))


class RedactingFormatter(logging.Formatter):
    """Lines of the log, with tracebacks, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        return redact(super().format(record))


def _print_error(error: FlowzooError | OSError) -> None:
    from rich.console import Console
    from rich.text import Text

    remedy = ""
    if not isinstance(error, FlowzooError):
        remedy = ". Choose another path, or check its permissions."
        if error.errno in _FULL:
            remedy = ". Free space there, or choose another directory."
    text = Text(f"error: {error_line(error)}{remedy}", "bold red")
    Console(stderr=True).print(text, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
