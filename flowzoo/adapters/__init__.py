"""Workflows in other trainers and evaluators, a file for each library; see docs/libraries.md."""
