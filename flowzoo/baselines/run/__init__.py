"""A run on disk: its directory, checkpoints, metric loggers, export, and reading it again.

`reading.RunData` reads the directory of a run of any age without torch.
"""
