"""Programs for maintainers; they run in a clone."""
