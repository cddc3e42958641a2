"""The engines around a run: what samples, what judges, and how new weights get there."""
