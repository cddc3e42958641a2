"""A policy that asks the person at the terminal, who sees the messages of the role alone."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from flowzoo.agents.policy import Batching, Completion, Request
from flowzoo.envs.render import printable
from flowzoo.errors import UsageError

EDIT = "/edit"
"""Typed alone, it opens an editor."""
QUOTES = '"""'
"""Typed alone, it begins a reply of several lines; a second one ends it."""
CUT = "-------- your reply goes above this line; the question below is left out --------"
_EDITORS = ("nano", "vim", "vi")
_COLORS = {"system": "dim", "assistant": "green"}


class HumanPolicy:
    """The person at the terminal, asked one question at a time."""

    batching: Batching = "stream"
    counts_tokens = False
    is_person = True

    def __init__(self, name: str = "human") -> None:
        self.name = name
        self._hint_shown = False

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Ask for a reply to each of `requests`, in their order."""
        # Blocks the event loop, so that Ctrl-C ends the program as usual.
        return [Completion(self._ask(request)) for request in requests]

    async def close(self) -> None:
        """No-op."""

    def _ask(self, request: Request) -> str:
        from rich.console import Console
        from rich.text import Text

        out = Console(stderr=True)  # standard output is for the transcript, or for JSON
        out.rule(Text(f"you are {request.agent}"))
        for message in request.messages:
            out.print(Text(f"{message['role']}:", style="bold"))
            text = message["content"]
            style = _COLORS.get(message["role"], "")
            out.print(Text(printable(text, len(text)), style=style), soft_wrap=True)
        for tool in request.tools:
            out.print(Text(f"tool: {json.dumps(tool.schema()['function'])}"), soft_wrap=True)
        hint = (
            ""
            if self._hint_shown
            else f" (Enter sends; {QUOTES} for several lines, {EDIT} to edit)"
        )
        self._hint_shown = True
        out.print(Text(f"your reply{hint}:", style="bold cyan"))
        while True:
            line = read_line(request.agent)
            if line.strip() == QUOTES:
                return read_quoted(request.agent)
            if line.strip() != EDIT:
                return line
            text = edit_text(request)
            if text:
                out.print(Text(printable(text, len(text)), style="cyan"), soft_wrap=True)
                return text
            out.print(Text("nothing written: type a reply, or /edit again", style="dim"))


def read_line(agent: str) -> str:
    """A line of standard input, without its end."""
    try:
        return input()
    except EOFError:
        raise UsageError(
            f"standard input ended while {agent} was to reply: a person plays this role "
            "(--policy human), who types one reply for every turn."
        ) from None


def read_quoted(agent: str) -> str:
    """The lines up to one of three quotes."""
    lines: list[str] = []
    while (line := read_line(agent)).strip() != QUOTES:
        lines.append(line)
    return "\n".join(lines)


def editor() -> list[str]:
    """The command of the person's editor: $VISUAL, $EDITOR, or the first usual one there is."""
    named = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if named:
        try:
            return shlex.split(named)
        except ValueError as error:
            raise UsageError(
                f"{EDIT}: cannot read the editor's command {named!r}: {error}"
            ) from None
    program = next(filter(None, map(shutil.which, _EDITORS)), None)
    if program is None:
        raise UsageError(f"{EDIT}: no editor found; set EDITOR, or type the reply.")
    return [program]


def edit_text(request: Request) -> str:
    """Text that the person writes in an editor above the question; the file is removed."""
    question = "\n\n".join(f"{m['role']}:\n{m['content']}" for m in request.messages)
    question = question.encode("utf-8", "replace").decode()  # lone surrogates fit no file
    with tempfile.TemporaryDirectory(prefix="flowzoo-") as folder:
        path = Path(folder) / f"{request.agent}.md"
        path.write_text(f"\n{CUT}\n{question}\n", encoding="utf-8")
        command = [*editor(), str(path)]
        # An editor draws on the terminal, even if standard output is redirected.
        try:
            done = subprocess.run(command, stdout=sys.stderr if not sys.stdout.isatty() else None)
        except OSError as error:
            raise UsageError(f"{EDIT}: cannot start {shlex.join(command[:-1])}: {error}") from None
        if done.returncode != 0:
            raise UsageError(
                f"{EDIT}: {shlex.join(command[:-1])} ended with status {done.returncode}."
            )
        return path.read_text(encoding="utf-8", errors="replace").partition(CUT)[0].strip()
