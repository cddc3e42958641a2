"""Mathematical answers: finding them in a reply, and whether two are equal.

`score.score_batch` is the way in; it works in processes that can be killed
(`flowzoo.sandbox.pool`).
"""
