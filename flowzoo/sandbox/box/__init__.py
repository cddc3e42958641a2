"""Boxes of programs: jobs, results and the engine."""
