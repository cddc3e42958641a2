"""Other spellings of one answer, brought to the one that is read."""
