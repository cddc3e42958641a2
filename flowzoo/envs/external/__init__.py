"""Third-party AEC environments in text: hooks, runs and their workflow."""
