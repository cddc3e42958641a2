"""The transformers engine: batched sampling on a CPU or GPU with keyed randomness.

`policy.TransformersPolicy` is the policy; the other files are its decoding loop.
"""
