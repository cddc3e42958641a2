"""A run on disk: its directory, checkpoints, metric loggers, export, and reading it again."""
