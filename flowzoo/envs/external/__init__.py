"""AEC environments of others, played in text: hooks, one run, and the workflow made of them."""
