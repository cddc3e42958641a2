"""A warm start: policies that imitate recorded replies, of experts or of their best episodes."""
