"""The training loop: from the settings of a run to its steps, evaluations and checkpoints."""
