"""Whether two meanings are the same: the conventions, scalars, sets of numbers, families.

`flowzoo.reward.math.compare` puts them together.
"""
