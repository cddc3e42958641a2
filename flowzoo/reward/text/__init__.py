"""Written texts and short answers: grounding, style, transitions, exact match."""
