"""Verdicts of flowzoo's graders next to published ones: `python -m benchmarks.grading.NAME`.

Answers of mathematics are drawn by sort, respelled and missed by a little. The truth of a pair is
by construction: an answer is a value of a sort, a respelling writes the same value in another way,
and a near miss writes another value. No grader is asked what is true.
"""
