"""Code answers: finding the program in a reply, and what its verdict is worth."""
