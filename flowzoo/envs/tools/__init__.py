"""Tools that agents may call: their schemas, and the calls in replies."""
