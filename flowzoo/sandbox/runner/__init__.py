"""The program inside a box. It uses the standard library alone and nothing of flowzoo."""
