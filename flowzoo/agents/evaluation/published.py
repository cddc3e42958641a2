"""Published sets by name, and the protocols that their figures were measured under."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from flowzoo.errors import UsageError, unknown
from flowzoo.files import read_toml

_SWITCH = {None: "as in the chat template", True: "on", False: "off"}


@dataclass(frozen=True, slots=True)
class PublishedProtocol:
    """Sampling of published figures."""

    source: str
    """Repository, file and commit that state it."""
    temperature: float
    top_p: float
    samples: int
    max_tokens: int
    top_k: int = 0
    thinking: bool | None = None
    """True: models think before they answer; None: not stated."""


@dataclass(frozen=True, slots=True)
class PublishedSet:
    """A set of problems, whose rows are elsewhere."""

    name: str
    task: str
    data: str
    """Data set on the hub."""
    rows: int
    """Number of its problems; 0: not stated."""
    protocol: PublishedProtocol
    options: tuple[str, ...] = ()
    """Options of the task that the rows need, as NAME=VALUE."""

    def describe(self, protocol: Mapping[str, Any]) -> str:
        """The name with the source of its protocol, and what `protocol`, as measured, has else."""
        changes = "; ".join(self._changes(protocol))
        return f"{self.name} by {self.protocol.source}" + (f" but {changes}" if changes else "")

    def _changes(self, protocol: Mapping[str, Any]) -> Iterator[str]:
        published = self.protocol
        if self.rows and protocol["problems"] != self.rows:
            yield f"{protocol['problems']} of {self.rows} problems"
        if protocol["samples"] != published.samples:
            yield f"{protocol['samples']} samples instead of {published.samples}"
        for way in protocol["decoding"].values():
            thinking = way.get("thinking")
            if way.get("decoding") and published.thinking not in (None, thinking):
                yield f"thinking {_SWITCH[thinking]} instead of {_SWITCH[published.thinking]}"
            if way.get("decoding") == "greedy":
                if published.temperature > 0:
                    yield f"greedy instead of temperature {published.temperature:g}"
                continue
            for name in ("temperature", "top_p", "top_k"):
                value = way.get(name, 0) if way.get("decoding") else None
                if value is not None and value != getattr(published, name):
                    yield f"{name} {value:g} instead of {getattr(published, name):g}"
        replies = {reply for _, reply in protocol["lengths"].values() if reply is not None}
        if replies - {published.max_tokens}:
            yield f"replies of {max(replies)} tokens instead of {published.max_tokens}"


@cache
def published_sets() -> Mapping[str, PublishedSet]:
    """The published sets by name."""
    table = read_toml(Path(__file__).with_suffix(".toml"))
    protocols = {name: PublishedProtocol(**row) for name, row in table["protocols"].items()}
    return {
        name: PublishedSet(
            name=name,
            task=row["task"],
            data=row["data"],
            rows=row["rows"],
            protocol=protocols[row["protocol"]],
            options=tuple(row.get("options", ())),
        )
        for name, row in table["sets"].items()
    }


def read_sets(arguments: tuple[str, ...]) -> dict[str, tuple[PublishedSet | None, str]]:
    """The sets that NAME or NAME=DATA name, each with its data; None: not a published one.

    Raises:
        UsageError: a name is unknown, given twice or no word.
    """
    sets: dict[str, tuple[PublishedSet | None, str]] = {}
    for word in arguments:
        name, equals, data = word.partition("=")
        published = published_sets().get(name)
        if not name.isidentifier() or (equals and not data):
            raise UsageError(f"--sets takes NAME or NAME=DATA with a word as name, got {word!r}")
        if published is None and not equals:
            raise unknown("published set", name, published_sets())
        if name in sets:
            raise UsageError(f"--sets names {name} twice: leave one out")
        sets[name] = published, data or (published.data if published else "")
    return sets
