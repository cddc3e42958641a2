"""Transcripts for people: text, color in a terminal, boards move by move."""
