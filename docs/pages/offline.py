"""Fails the build if a page would load anything from a network when it is viewed."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import SphinxError

_ELSEWHERE = re.compile(r"^\s*(?:[a-z+]+:)?//", re.IGNORECASE)
_IN_STYLE = re.compile(r"""(?:url\(|@import\s)\s*["']?(?:https?:)?//[^)"';]*""", re.IGNORECASE)


class Loads(HTMLParser):
    """Addresses that a page loads, all but links."""

    def __init__(self) -> None:
        """Start with nothing."""
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the addresses of an element that is no link."""
        for name, value in attrs:
            of_link = name == "href" and tag in ("a", "area")
            if value and name in ("src", "srcset", "data", "href", "poster") and not of_link:
                self.addresses.append(value)


def elsewhere(path: Path) -> list[str]:
    """Addresses on other machines that a page or style sheet loads from."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".css":
        return _IN_STYLE.findall(text)
    page = Loads()
    page.feed(text)
    return [address for address in page.addresses if _ELSEWHERE.match(address)] + _IN_STYLE.findall(
        text
    )


def check(app: Sphinx, error: Exception | None) -> None:
    """Check every page and style sheet of the site.

    Raises:
        SphinxError: a page loads from another machine.
    """
    if error is not None:
        return
    for path in sorted(Path(app.outdir).rglob("*")):
        if path.suffix in (".html", ".css") and (addresses := elsewhere(path)):
            raise SphinxError(f"{path}: would load {', '.join(addresses[:3])} when it is viewed")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the check."""
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
