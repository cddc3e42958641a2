"""What long commands show while they run, on a terminal and without one."""
