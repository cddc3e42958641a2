"""The learner of one policy: packed rows, log-probs, loss, gradients per role, optimiser steps.

`update.Learner` is the way in. Knows nothing of workflows, engines and run directories.
"""
