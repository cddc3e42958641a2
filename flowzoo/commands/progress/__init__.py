"""Progress of long commands, with or without a terminal."""
