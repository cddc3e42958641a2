"""Many episodes at once: the event loop that batches requests and effects, and its samplers."""
