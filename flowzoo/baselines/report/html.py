"""The HTML of a page: facts and episodes as JSON, one script, one style sheet."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from importlib.resources import files
from typing import Any

from flowzoo import __version__
from flowzoo.baselines.report.words import finite_only

SCRIPTS = ("chart.js", "dom.js", "theme.js", "plots.js", "tables.js", "groups.js", "run.js",
           "failures.js", "matrix.js", "search.js", "browser.js", "episodes.js", "evaluation.js",
           "main.js")  # fmt: skip
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def as_json(value: object) -> str:
    """`value` as ASCII JSON for a script element; NaN and infinities become null."""
    text = json.dumps(finite_only(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&]", lambda match: _ESCAPES[match.group()], text)


def render(
    title: str,
    facts: Mapping[str, object],
    episodes: Mapping[str, object] | None,
    extra_script: str = "",
    *,
    live: str | None = None,
    loads: bool = False,
) -> str:
    """Build the page of facts (`run`, `matrix`, `evaluation` or `comparison`) and `episodes`.

    A `live` page asks its own server for changes since that state, and nothing else. A page that
    `loads` takes scripts from its own server, or its own disk, and nothing else.
    """
    # The page's script writes text as text only, from two blocks of JSON that are ASCII without
    # `<`, `>` and `&`, so no reply can end them. A content security policy admits the page's own
    # script and style by their hashes and nothing else.
    if live:
        extra_script += _part("live.js")
        facts = {**facts, "live": live}
    script, style = _script(extra_script), _part("page.css")
    beside = " 'self' file:" if loads else ""  # `file:` where 'self' covers no file
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'{beside}; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
        + ("; connect-src 'self'" if live else "")
    )
    values = {
        "title": html.escape(title),
        "policy": policy,
        "style": style,
        "facts": as_json(facts),
        "episodes": as_json(episodes),
        "script": script,
    }
    # One pass, so that a value that contains a placeholder is not replaced.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match.group(1)], _part("page.html"))


@lru_cache
def _part(name: str) -> str:
    return (files("flowzoo.baselines.report") / "page" / name).read_text(encoding="utf-8")


@lru_cache
def _script(extra: str) -> str:
    # Chart.js's link to its source map would be a request.
    library, *parts, main = (_part(name) for name in SCRIPTS)
    library = re.sub(r"(?m)^//# sourceMappingURL=.*$", "", library)
    return f'{library}\n(() => {{\n"use strict";\n{"".join(parts)}{extra}{main}}})();\n'


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def stamp(title: str, **parts: Any) -> dict[str, Any]:
    """Facts of a page with its title, flowzoo's version and the time."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return {"title": title, "version": __version__, "made": now, **parts}
