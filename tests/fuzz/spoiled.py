"""Files and messages of strangers: right ones, of which parts are exchanged, cut or repeated."""

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**70), 10**400, 0.5, 1e308, -1e-308,
    float("nan"), float("inf"), "", "x", "\0", "\ud800", "é" * 300, "../../etc/passwd", "/dev/zero",
    "<img src=x onerror=alert(1)>", "{{ 7 * 7 }}", "%s%n", "a\nb\rc", "x" * 100_000, [], {}, [[]],
    [None], [{}], {"": None}, {"\0": []}, ["x"] * 1000, [1, "1", None], [[1], [1, 2]],
)  # fmt: skip
"""Values in place of right ones."""
DEEP: Any = []
for _ in range(400):
    DEEP = [DEEP]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all nodes of a tree."""
    items = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value) if isinstance(value, list) else items
    return [path, *(place for key, part in inner for place in places(part, (*path, key)))]


def put(tree: Any, path: Sequence[Any], change: Any) -> Any:
    """A tree with a changed node: `change` of its parent and key is called."""
    if not path:
        return change({0: tree}, 0)[0]
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    if len(path) == 1:
        return change(copy, path[0])
    copy[path[0]] = put(copy[path[0]], path[1:], change)
    return copy


def exchanged(parent: Any, key: Any, value: Any) -> Any:
    parent[key] = value
    return parent


def dropped(parent: Any, key: Any) -> Any:
    del parent[key]
    return parent or {0: None}


def renamed(parent: Any, key: Any, name: str) -> Any:
    if isinstance(parent, dict):
        return {(name if other == key else other): value for other, value in parent.items()}
    return [*parent, parent[key]]


@st.composite
def trees(draw: st.DrawFn, tree: Any) -> Any:
    """The tree with one to three changed nodes."""
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(tree)))
        kind = draw(st.sampled_from(("exchange", "exchange", "near", "drop", "rename")))
        if kind == "drop" and path:
            tree = put(tree, path, dropped)
        elif kind == "rename" and path:
            name = draw(st.sampled_from(("", "x", "__class__", "step", "a" * 999)))
            tree = put(tree, path, lambda at, key, name=name: renamed(at, key, name))
        else:
            value = draw(st.sampled_from((*HOSTILE, DEEP)))
            if kind == "near":  # of the right type, or nearly
                value = draw(st.integers(-(2**33), 2**33) | st.floats() | st.text(max_size=20))
            tree = put(tree, path, lambda at, key, value=value: exchanged(at, key, value))
    return tree


@st.composite
def cut_up(draw: st.DrawFn, data: bytes) -> bytes:
    """The bytes with one to four of them exchanged, runs cut out, repeated, or put in."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.sampled_from((0, 1, 2, 4, 8, 100, 10**6))))
        times = draw(st.sampled_from((0, 0, 1, 2, 50)))
        new = draw(st.binary(max_size=8) | st.sampled_from((b"\0", b"[" * 5000, b"\xff" * 8)))
        data = data[:start] + data[start:end] * times + new + data[end:]
    return data


def to_json(tree: Any) -> bytes:
    """JSON, of which surrogates are escaped."""
    return json.dumps(tree).encode()


def to_lines(tree: Any) -> bytes:
    """A line of JSON for each item."""
    rows = tree if isinstance(tree, list) else [tree]
    return b"".join(to_json(row) + b"\n" for row in rows)


def to_toml(tree: Any) -> bytes:
    """TOML with inline tables."""
    if not isinstance(tree, dict):
        return _toml(tree).encode("utf-8", "surrogatepass")
    lines = [f"{json.dumps(str(name))} = {_toml(value)}\n" for name, value in tree.items()]
    return "".join(lines).encode("utf-8", "surrogatepass")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(str(k))} = {_toml(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool) or value is None:
        return str(bool(value)).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)
