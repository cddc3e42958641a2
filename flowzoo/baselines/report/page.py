"""Rendering facts as one self-contained HTML file.

The page's script builds everything from two blocks of JSON and writes text as text only. The blocks
are ASCII without `<`, `>` and `&`, so no reply can end them. A content security policy admits the
page's own script and style by their hashes and nothing else: no network, no other script.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

SCRIPTS = ("chart.js", "dom.js", "theme.js", "plots.js", "tables.js", "run.js", "failures.js",
           "matrix.js", "search.js", "browser.js", "main.js")  # fmt: skip
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def as_json(value: Any) -> str:
    """`value` as ASCII JSON for a script element; NaN and infinities become null."""
    text = json.dumps(_finite(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&]", lambda match: _ESCAPES[match.group()], text)


def render(
    title: str,
    facts: Mapping[str, Any],
    episodes: Mapping[str, Any] | None,
    extra_script: str = "",
) -> str:
    """Build the page.

    Args:
        title: of the page.
        facts: `run` or `matrix`, and what the head and foot of the page show.
        episodes: the value of `pack`, or None.
        extra_script: JavaScript that adds sections to `extraSections`, for studies.
    """
    script, style = _script(extra_script), _part("page.css")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
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
    """All scripts as one; Chart.js's link to its source map would be a request."""
    library, *parts, main = (_part(name) for name in SCRIPTS)
    library = re.sub(r"(?m)^//# sourceMappingURL=.*$", "", library)
    return f'{library}\n(() => {{\n"use strict";\n{"".join(parts)}{extra}{main}}})();\n'


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _finite(value: Any) -> Any:
    """`value` with None for every number that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(item) for item in value]
    return value
