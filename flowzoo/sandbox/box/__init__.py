"""Boxes, in which programs run: jobs into them, results out of them, the engine of all."""
