"""The claims of arXiv 2605.24202 on matrices of shared and isolated policies."""
