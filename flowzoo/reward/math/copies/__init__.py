"""Whether an answer is only copied from its problem."""
