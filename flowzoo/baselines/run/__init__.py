"""A run on disk: its directory, checkpoints, metrics on boards, export, and reading it again.

`reading.RunData` reads the directory of a run of any age without torch.
"""
