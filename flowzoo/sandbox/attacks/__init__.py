"""Self-check of the sandbox, run by `flowzoo sandbox check`."""
