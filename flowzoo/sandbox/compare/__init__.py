"""Whether outputs are the expected ones, compared outside the box."""
