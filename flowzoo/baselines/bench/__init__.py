"""Speed, measured side by side: what `flowzoo bench` runs.

`rounds` has the clocks and the rounds in which contenders take turns, `quiet` says how busy the
machine was with other things, `record` writes what was found. Every other file is one bench: a
function `measure(plan)` that yields rows as they are measured. `names` lists them.
"""
