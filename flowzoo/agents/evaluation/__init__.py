"""How well a policy map plays a workflow: held-out problems, votes, summaries with intervals.

`evaluate` is the way in. May use rollout; training and the command line use it.
"""
