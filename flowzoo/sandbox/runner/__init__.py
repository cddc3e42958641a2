"""The program inside a box. It uses only the standard library, nothing of flowzoo."""
