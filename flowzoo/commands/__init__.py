"""The commands of `flowzoo`, one module each.

A module holds `Options`, a dataclass whose fields and their docstrings are the command line, and
`run(options)`, which returns the exit status. What a command needs is imported inside `run`, so
that printing help stays fast.
"""
