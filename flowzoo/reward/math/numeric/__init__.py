"""Values of expressions, and whether two expressions are the same function.

`probe` decides; `doubles` rejects cheaply, with bounds on its own rounding; `precise` confirms at
growing precision; `points` and `kinks` say where to look, and `models` stands in for functions that
nobody knows.
"""
