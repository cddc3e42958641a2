"""Transcripts for people: text, colour in a terminal, boards move by move."""
