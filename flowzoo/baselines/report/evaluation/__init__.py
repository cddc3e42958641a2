"""Pages about evaluations of `flowzoo eval`."""
