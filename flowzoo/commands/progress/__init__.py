"""Progress of long commands, on a terminal and without one."""
