"""Estimate the memory of a run, from the arguments of `flowzoo train`."""

from __future__ import annotations

import sys

from benchmarks.plan.command import main

if __name__ == "__main__":
    sys.exit(main())
