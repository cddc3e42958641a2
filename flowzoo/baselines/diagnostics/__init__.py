"""What a run measures about itself: cliffs, captures, amplification, forms."""
