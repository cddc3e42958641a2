"""A loop without a library: an actor and a critic in a vector environment of Gymnasium."""

from __future__ import annotations

from rows import learned, report

if __name__ == "__main__":
    report("A loop in torch", ("gymnasium", "torch"), [learned("gymnasium_loop")])
