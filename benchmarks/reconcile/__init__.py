"""The same stored replies, scored by flowzoo and by other evaluation harnesses."""
