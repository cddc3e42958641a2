"""Values of expressions, and comparison of two expressions as functions.

`probe` decides; `doubles` rejects cheaply, with bounds on its own rounding; `precise` confirms at
growing precision; `points` holds the points.
"""
