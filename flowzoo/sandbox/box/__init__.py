"""Boxes, in which programs run: jobs into them, results out of them, the engine that drives all.

A box may be a container or a process; `flowzoo.sandbox.backends` starts it.
"""
