"""The fenced blocks of the documentation's pages, and their commands at a size for tests."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SMALLER = {"--steps": 2, "--problems": 2, "--samples": 4, "--eval-problems": 6, "--n": 6}
"""Most that a command of a page takes, where the page does not show what it prints."""


class Block(NamedTuple):
    """A block: its language ("" for none) and its text."""

    language: str
    text: str

    @property
    def file(self) -> str:
        """The file that a block of Python is to be put into, or nothing."""
        named = re.match(r'"""(\w+\.py)"""\n', self.text)
        return named[1] if named else ""


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    return [Block(*match) for match in BLOCK.findall(page.read_text(encoding="utf-8"))]


def smaller(args: list[str]) -> list[str]:
    """The words of a command, for less work."""
    pairs = zip(["", *args], args, strict=False)
    return [str(min(int(item), SMALLER[name])) if name in SMALLER else item for name, item in pairs]


def commands_of(block: Block) -> list[list[str]]:
    """The words of every line that begins with `flowzoo`, without that and without comments."""
    lines = [line for line in block.text.splitlines() if line.startswith("flowzoo ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]
