"""Speed of flowzoo next to other libraries: `python -m benchmarks.speed`.

Every file is one benchmark, a function `measure(workload)` that yields rows as they are measured.
`__main__` lists them and records their results.
"""
