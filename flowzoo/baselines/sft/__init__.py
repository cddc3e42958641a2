"""A warm start: policies that imitate recorded replies, of experts or of their own best episodes.

`sources` reads transcripts, `choose` says which of their replies are taught, `rows` tokenises them
as sampling would have, `trainer` is the loop.
"""
