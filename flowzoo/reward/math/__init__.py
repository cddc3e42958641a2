"""Mathematical answers: extraction from replies, and comparison."""
