"""The learner of one policy: packed rows, log-probs, loss, gradients per role, optimizer steps.

`update.Learner` is the way in. Knows nothing of workflows, engines and run directories.
"""
