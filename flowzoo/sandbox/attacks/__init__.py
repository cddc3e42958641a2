"""A self-check of the sandbox, which `flowzoo sandbox check` runs."""
