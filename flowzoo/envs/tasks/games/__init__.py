"""Board games: plan_path, sokoban and sudoku, with compiled rules and solvers."""
