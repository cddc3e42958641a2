"""What a warm runner has done before the first program: the imports that programs commonly need.

A fork copies an entry for every page that the runner has, and an import that is missing costs each
program that needs it: `dataclasses`, `decimal`, `fractions` and `datetime` would make all programs
slower by 5 to 10 %, for the few that use them.
"""

from __future__ import annotations

import importlib
import sys

COMMON = (
    "abc", "bisect", "collections", "collections.abc", "copy", "enum", "functools", "heapq",
    "itertools", "json", "math", "operator", "random", "re", "string", "threading", "time", "types",
    "typing",
)  # fmt: skip

_SAMPLE = """
import sys
class Sample:
    def method(self, x: int = 1, *args, **kwargs) -> list:
        return [f"{i:3}" for i in range(x) if i % 2 == 0]
def loop(n):
    while n > 0:
        n -= 1
        try: assert {n: (n, -n)}[n][0] < 0
        except (AssertionError, KeyError) as error: continue
    return lambda x: x ** 2 // 3
loop(3)(4), Sample().method(3)
"""
"""Code that has the compiler and the interpreter touch what they set up at first use."""


def warm_up(own_modules: set[str]) -> list[str]:
    """Import, compile once, forget the runner's own modules; the module path of programs.

    Args:
        own_modules: names in `sys.modules` that programs must not find.
    """
    for name in COMMON:
        importlib.import_module(name)
    exec(compile(_SAMPLE, "<warm>", "exec"), {})
    path = sys.path[1:]
    for name in own_modules:
        sys.modules.pop(name, None)
    return path
