"""What a matrix is made to show: which findings call it, where it is, and what mends it."""
