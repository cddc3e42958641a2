"""The commands of `flowzoo`, one module each.

A module has `Options`, a dataclass whose fields and docstrings define the command line, and
`run(options)`, which returns the exit status. Dependencies of a command are imported in `run`,
which keeps help fast.
"""
