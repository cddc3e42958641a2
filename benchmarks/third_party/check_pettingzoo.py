"""PettingZoo: its conformance tests and our tests of the environments, with a release of it."""

from __future__ import annotations

from pettingzoo import make
from pettingzoo.test import api_test, parallel_api_test, seed_test
from rows import Row, report, tested

import flowzoo  # noqa: F401 - registers the environments


def aec() -> None:
    """`api_test` and `seed_test` on the registered environment."""
    api_test(make("aec", "flowzoo/voting-v0"), num_cycles=50)
    seed_test(lambda: make("aec", "flowzoo/voting-v0"), num_cycles=10)


def parallel() -> None:
    """`parallel_api_test` on a workflow in which all agents act at once."""
    parallel_api_test(make("parallel", "flowzoo/coder_tester-v0"), num_cycles=50)


ROWS = [
    Row("`make`, `api_test`, `seed_test`", aec),
    Row("`parallel_api_test`", parallel),
    *(tested(f"envs/api/test_{name}.py") for name in ("aec_env", "parallel_env", "registry")),
]

if __name__ == "__main__":
    report("PettingZoo", ["pettingzoo", "gymnasium"], ROWS)
