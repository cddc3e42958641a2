"""The HTTP front of all servers: bounds of connections and requests, checks, errors, metrics."""
