"""The grader of the public code of arXiv:2605.24202 and Dr. MAS."""
