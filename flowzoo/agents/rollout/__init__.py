"""Many episodes at once: the event loop that batches requests and effects, and its samplers.

`episodes.Rollout` plays whole episodes, `tree.TreeRollout` candidates at every turn,
`joint.JointRollout` trees of joint actions. May use policies and the policy map, not a certain
engine.
"""
