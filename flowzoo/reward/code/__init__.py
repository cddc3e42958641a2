"""Code answers: extraction of programs from replies, and scores."""
